// Notes which warps have touched shared memory since the block's last barrier. Before the next one,
// other warps may not read or write the bytes that a warp has written, nor write those that it has
// read: which of the two came first would be luck. Such races are found in whatever order the
// interpreter runs the warps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::ptx {

class SharedTouches {
 public:
  explicit SharedTouches(size_t bytes) : bytes_(bytes) {}

  void pass_barrier();
  // A warp reads or writes these bytes. Null, or what another warp has done with one of them, such
  // as "written".
  const char* read(size_t offset, size_t count, uint32_t warp);
  const char* write(size_t offset, size_t count, uint32_t warp);

 private:
  // Touches are numbers: the time, and in the lower bits which warp, or several.
  static constexpr uint32_t kSeveral = 63;
  static constexpr uint32_t kWarps = 64;
  struct Byte {
    uint32_t written = 0;
    uint32_t read = 0;
  };
  bool is_others(uint32_t touch, uint32_t warp) const {
    return touch >= now_ && touch != now_ + warp;
  }

  uint32_t now_ = kWarps;
  std::vector<Byte> bytes_;
};

}  // namespace lockstep::ptx
