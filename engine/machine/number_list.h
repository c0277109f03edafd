// The kernel's lists of numbers, as it writes processors and nodes: "0-3,8,10-11".
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// In the order given; empty text is an empty list. None for text that is no such list, and for
// numbers above 65535: no machine has that many of anything.
std::optional<std::vector<int>> parse_number_list(std::string_view text);

// The same from a file's first line. None when the file cannot be read either.
std::optional<std::vector<int>> read_number_list(const std::filesystem::path& path);

// Ascending numbers as such a list.
std::string write_number_list(std::span<const int> numbers);

}  // namespace lockstep
