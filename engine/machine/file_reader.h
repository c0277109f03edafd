// Reads of given stretches of one file. Whole or not at all: a short read is continued, an end that
// comes too early is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "engine/base/result.h"

namespace lockstep {

class FileReader {
 public:
  static Result<FileReader> open(const std::filesystem::path& path);

  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  ~FileReader();

  // Fills `bytes` from `offset` on. May be called from several threads. Fails with kInvalidInput
  // when the file ends before, with kMachineRefused for an error of the system; both name the file
  // and the offset.
  Result<void> read(uint64_t offset, std::span<std::byte> bytes) const;

 private:
  FileReader(std::filesystem::path path, int descriptor);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace lockstep
