// How fast a file comes from its disk: what bounds the time that a load takes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/base/result.h"

namespace lockstep {

struct FileSpeed {
  uint64_t bytes = 0;  // that were read
  double seconds = 0;
  bool direct = false;  // past the page cache; else the file system has refused that
};

// Reads the file from its begin as a load does, with several MiB in flight, for `seconds` or to its
// end. Fails with kInvalidInput for what is no file, with kMachineRefused for what cannot be read.
Result<FileSpeed> measure_file_read(const std::filesystem::path& path, double seconds);

}  // namespace lockstep
