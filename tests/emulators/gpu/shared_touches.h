// Who has touched shared memory since the block's last barrier. What a warp writes another may
// neither read nor write before the next one, and what it reads another may not write: which of the
// two comes first is luck. Found whatever the order in which the interpreter runs them.
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
