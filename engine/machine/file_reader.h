// Reads of given ranges of one file. Whole or not at all: a short read is continued, an end that
// comes too early is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "engine/base/result.h"

namespace lockstep {

// A regular file that is not empty, open from here on and closed with this object: what is read is
// of one file, whatever happens to its name.
class FileReader {
 public:
  // kInvalidInput for a path that is not a file with something in it, kMachineRefused for one that
  // may not or cannot be read. Never waits for a FIFO's other end.
  static Result<FileReader> open(const std::filesystem::path& path);

  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  ~FileReader();

  const std::filesystem::path& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }
  int64_t changed_ns() const { return changed_ns_; }  // since 1970, when it was opened
  // Which file it is, on this machine.
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }
  int descriptor() const { return descriptor_; }  // open for reading; stays this object's

  // Fills `bytes` from `offset` on. May be called from several threads. Fails with kMachineRefused,
  // also when the file ends before: it was longer when it was opened. Names the file and the
  // offset.
  Result<void> read(uint64_t offset, std::span<std::byte> bytes) const;

  // Fails with kMachineRefused if the file was written to since it was opened, or if its path names
  // another file by now, or none.
  Result<void> check_unchanged() const;

 private:
  FileReader(std::filesystem::path path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  Result<void> examine();

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
  int64_t changed_ns_ = 0;  // modification time when it was opened
  uint64_t device_ = 0;     // with inode_: which file it is
  uint64_t inode_ = 0;
};

}  // namespace lockstep
