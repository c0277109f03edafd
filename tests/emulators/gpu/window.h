// A block's shared memory, or its threads' local memory: bytes, and which of them have been
// written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/emulators/gpu/random.h"

namespace lockstep::ptx {

enum class Written : uint8_t {
  kNever,
  kYes,
  kPromised,  // by cp.async, which has not been waited for
};

class Window {
 public:
  // The seed says what it holds before it is written.
  Window(size_t bytes, uint64_t seed) : bytes_(bytes), written_(bytes, Written::kNever) {
    fill_with_anything(bytes_, seed);
  }

  size_t size() const { return bytes_.size(); }
  std::byte* at(size_t offset) { return bytes_.data() + offset; }
  size_t offset_of(const std::byte* address) const {
    return static_cast<size_t>(address - bytes_.data());
  }

  bool is_written(size_t offset, size_t count) const {
    const Written* at = written_.data() + offset;
    bool all = true;
    for (; count >= sizeof(uint64_t); count -= sizeof(uint64_t), at += sizeof(uint64_t)) {
      all = all && all_written<uint64_t>(at);
    }
    if (count == sizeof(uint32_t)) return all && all_written<uint32_t>(at);
    return all && std::all_of(at, at + count, [](Written byte) { return byte == Written::kYes; });
  }
  bool has_promised(size_t offset, size_t count) const {
    const Written* const first = written_.data() + offset;
    return std::find(first, first + count, Written::kPromised) != first + count;
  }
  void set_written(size_t offset, size_t count, Written how) {
    std::memset(written_.data() + offset, static_cast<int>(how), count);
  }

 private:
  template <typename T>
  static bool all_written(const Written* first) {
    T found;
    std::memcpy(&found, first, sizeof(T));
    return found == static_cast<T>(0x0101010101010101u);
  }

  std::vector<std::byte> bytes_;
  std::vector<Written> written_;
};

}  // namespace lockstep::ptx
