#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

// Names of what lies in a folder; none where it cannot be read. Throws std::bad_alloc alone:
// std::filesystem's iterator ends the process where there is no memory for it.
std::vector<std::string> folder_names(const std::filesystem::path& folder);

}  // namespace lockstep
