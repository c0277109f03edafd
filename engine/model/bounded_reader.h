// Reads little-endian numbers and strings one after the other from a ByteSource, through a buffer
// of its own, never past the source's end.
//
// Failures stick: after the first one every read gives zero or nothing, and error() tells what it
// was. So a caller may read several fields and then ask once, but must ask before it uses a value
// that it read as a size or a count.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/byte_source.h"

namespace lockstep {

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
