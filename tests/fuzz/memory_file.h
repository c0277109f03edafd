// A file in memory for what is opened by its path.
#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <string>

#include "engine/base/check.h"
#include "engine/base/descriptor.h"

namespace lockstep {

class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes)
      : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    const ssize_t written = ::write(descriptor_.number(), bytes.data(), bytes.size());
    CHECK(written == static_cast<ssize_t>(bytes.size()), "{} bytes were written", written);
  }

  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_.number()); }

 private:
  Descriptor descriptor_;
};

}  // namespace lockstep
