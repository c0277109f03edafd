// Forms in which the kernel writes what it says under /proc and /sys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Names of what lies in a folder; none where it cannot be read. Throws std::bad_alloc alone:
// std::filesystem's iterator ends the process where there is no memory for it.
std::vector<std::string> folder_names(const std::filesystem::path& folder);

// The bytes of each line of a meminfo file, a node's ("Node 0 MemFree:  123 kB") or the machine's,
// by key ("MemFree"). Empty where it cannot be read.
std::map<std::string, uint64_t, std::less<>> read_memory_info(
    const std::filesystem::path& file_path);

// A list of numbers, as the kernel writes processors and nodes ("0-3,8,10-11"), in its order; empty
// text is an empty list. None for text that is no such list, and for numbers above 65535: no
// machine has that many of anything.
std::optional<std::vector<int>> parse_number_list(std::string_view text);

// The same from a file's first line. None when the file cannot be read either.
std::optional<std::vector<int>> read_number_list(const std::filesystem::path& path);

// Ascending numbers as such a list.
std::string write_number_list(std::span<const int> numbers);

}  // namespace lockstep
