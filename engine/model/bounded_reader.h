// Reads little-endian numbers and strings one after the other from a ByteSource, through a buffer
// of its own, never past the source's end.
//
// Failures stick: after the first one every read gives zero or nothing, and error() tells what it
// was. So a caller may read several fields and then ask once, but must ask before it uses a value
// that it read as a size or a count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/file_reader.h"

namespace lockstep {

// The source of a header's bytes: a file, or memory for tests and fuzzing.
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

class BoundedReader {
 public:
  explicit BoundedReader(const ByteSource& source) : source_(source) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return source_.size_bytes() - position_; }

  bool failed() const { return error_.has_value(); }
  const Error& error() const { return *error_; }

  // `field` names what is read, for messages: "the version".
  template <typename T>
  requires std::is_arithmetic_v<T> T number(std::string_view field) {
    T value{};
    read(field, &value, sizeof(value));
    return value;
  }

  // A 64-bit length and that many bytes, at most bytes_max of them.
  std::string text(std::string_view field, uint64_t bytes_max);

  // Makes this the reader's failure, unless there was one before: "FILE: FIELD at byte OFFSET:
  // ...".
  template <typename... Arguments>
  void fail(std::string_view field, uint64_t offset, fmt::format_string<Arguments...> format,
            Arguments&&... arguments) {
    fail_with(field, offset, fmt::format(format, std::forward<Arguments>(arguments)...));
  }

 private:
  void read(std::string_view field, void* into, size_t bytes);
  bool refill();
  void fail_with(std::string_view field, uint64_t offset, const std::string& problem);

  const ByteSource& source_;
  uint64_t position_ = 0;  // of the next byte to give out
  std::vector<std::byte> buffer_;
  size_t buffer_next_ = 0;  // index in buffer_ of the byte at position_
  std::optional<Error> error_;
};

}  // namespace lockstep
