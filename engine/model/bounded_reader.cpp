#include "engine/model/bounded_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/base/check.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are stored");

// Large enough that a vocabulary of 8 MB takes a few dozen reads, small beside any model.
constexpr uint64_t kBufferBytes = 256 * 1024;

}  // namespace

Result<void> MemorySource::read(uint64_t offset, std::span<std::byte> bytes) const {
  CHECK(offset <= bytes_.size() && bytes.size() <= bytes_.size() - offset,
        "{} bytes at {} of {} bytes in memory", bytes.size(), offset, bytes_.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  return {};
}

std::string BoundedReader::text(std::string_view field, uint64_t bytes_max) {
  const uint64_t start = position_;
  const auto length = number<uint64_t>(field);
  if (failed()) return {};
  if (length > remaining()) {
    fail(field, start, "a string of {} bytes, but only {} bytes follow in the file", length,
         remaining());
    return {};
  }
  if (length > bytes_max) {
    fail(field, start, "a string of {} bytes; at most {} are accepted", length, bytes_max);
    return {};
  }
  std::string result(length, '\0');
  read(field, result.data(), length);
  return result;
}

void BoundedReader::read(std::string_view field, void* into, size_t bytes) {
  if (failed()) return;
  if (bytes > remaining()) {
    fail(field, position_, "the file ends after {} of the {} bytes it needs", remaining(), bytes);
    return;
  }
  auto* destination = static_cast<std::byte*>(into);
  while (bytes > 0) {
    if (buffer_next_ == buffer_.size() && !refill()) return;
    const size_t count = std::min(bytes, buffer_.size() - buffer_next_);
    std::memcpy(destination, buffer_.data() + buffer_next_, count);
    destination += count;
    bytes -= count;
    buffer_next_ += count;
    position_ += count;
  }
}

bool BoundedReader::refill() {
  buffer_.resize(std::min(kBufferBytes, remaining()));
  buffer_next_ = 0;
  const Result<void> done = source_.read(position_, buffer_);
  if (!done) {
    buffer_.clear();
    error_ = done.error();
  }
  return done.has_value();
}

void BoundedReader::fail_with(std::string_view field, uint64_t offset, const std::string& problem) {
  if (failed()) return;
  error_ = Error{ErrorKind::kInvalidInput,
                 fmt::format("{}: {} at byte {}: {}", source_.name(), field, offset, problem)};
}

}  // namespace lockstep
