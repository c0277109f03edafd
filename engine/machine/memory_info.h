#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace lockstep {

// The bytes of each line of a meminfo file, a node's ("Node 0 MemFree:  123 kB") or the machine's,
// by key ("MemFree"). Empty where it cannot be read.
std::map<std::string, uint64_t, std::less<>> read_memory_info(
    const std::filesystem::path& file_path);

}  // namespace lockstep
