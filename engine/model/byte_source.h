// Where the bytes of a model file's header come from: a file, or memory for tests and fuzzing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/result.h"
#include "engine/machine/file_reader.h"

namespace lockstep {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  const std::string& name() const { return name_; }  // for messages
  uint64_t size_bytes() const { return size_bytes_; }

  // Fills `bytes` from `offset` on; the caller stays inside size_bytes().
  virtual Result<void> read(uint64_t offset, std::span<std::byte> bytes) const = 0;

 protected:
  ByteSource(std::string name, uint64_t size_bytes)
      : name_(std::move(name)), size_bytes_(size_bytes) {}
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

 private:
  std::string name_;
  uint64_t size_bytes_ = 0;
};

// A file; the reader is borrowed.
class FileSource : public ByteSource {
 public:
  explicit FileSource(const FileReader& reader)
      : ByteSource(reader.path().string(), reader.size_bytes()), reader_(reader) {}

  Result<void> read(uint64_t offset, std::span<std::byte> bytes) const override {
    return reader_.read(offset, bytes);
  }

 private:
  const FileReader& reader_;
};

// Bytes that the caller keeps alive.
class MemorySource : public ByteSource {
 public:
  MemorySource(std::string_view name, std::span<const std::byte> bytes)
      : ByteSource(std::string(name), bytes.size()), bytes_(bytes) {}

  Result<void> read(uint64_t offset, std::span<std::byte> bytes) const override;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep
