// A block's shared memory, or its threads' local memory: bytes, and which of them have been
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace lockstep::ptx {

class Window {
 public:
  explicit Window(size_t bytes) : bytes_(bytes, std::byte{0xd5}), written_(bytes, 0) {}

  size_t size() const { return bytes_.size(); }
  std::byte* at(size_t offset) { return bytes_.data() + offset; }

  size_t offset_of(const std::byte* address) const {
    return static_cast<size_t>(address - bytes_.data());
  }

  bool is_written(size_t offset, size_t count) const {
    const uint8_t* const first = written_.data() + offset;
    if (count == 4) return same<uint32_t>(first);
    if (count == 8) return same<uint64_t>(first);
    for (size_t i = 0; i < count; ++i) {
      if (first[i] == 0) return false;
    }
    return true;
  }
  void set_written(size_t offset, size_t count, bool written) {
    std::memset(written_.data() + offset, written ? 1 : 0, count);
  }

 private:
  template <typename T>
  static bool same(const uint8_t* first) {
    T found;
    std::memcpy(&found, first, sizeof(T));
    return found == static_cast<T>(0x0101010101010101u);
  }

  std::vector<std::byte> bytes_;
  std::vector<uint8_t> written_;
};

}  // namespace lockstep::ptx
