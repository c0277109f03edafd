#include "tests/emulators/gpu/shared_touches.h"

#include <algorithm>

namespace lockstep::ptx {

void SharedTouches::pass_barrier() {
  now_ += kWarps;
  if (now_ != 0) return;
  // After 2^26 barriers the numbers begin anew.
  std::fill(bytes_.begin(), bytes_.end(), Byte{});
  now_ = kWarps;
}

const char* SharedTouches::read(size_t offset, size_t count, uint32_t warp) {
  for (size_t i = offset; i < offset + count; ++i) {
    Byte& byte = bytes_[i];
    if (is_others(byte.written, warp)) return "written";
    byte.read = now_ + (is_others(byte.read, warp) ? kSeveral : warp);
  }
  return nullptr;
}

const char* SharedTouches::write(size_t offset, size_t count, uint32_t warp) {
  for (size_t i = offset; i < offset + count; ++i) {
    Byte& byte = bytes_[i];
    if (is_others(byte.written, warp)) return "written";
    if (is_others(byte.read, warp)) return "read";
    byte.written = now_ + warp;
  }
  return nullptr;
}

}  // namespace lockstep::ptx
