// Notes which warps have touched shared memory since the block's last barrier. Before the next one,
// other warps may not read or write the bytes that a warp has written, nor write those that it has
// read: which of the two came first would be luck. Such races are found in whatever order the
// interpreter runs the warps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep::ptx {

class SharedTouches {
 public:
  struct GiveBack {
    void operator()(SharedTouches* touches) const;
  };
  using Pointer = std::unique_ptr<SharedTouches, GiveBack>;
  // For so many bytes, none of which has been touched. The calling thread keeps those that it has
  // given back for the next block: to have them anew takes longer than many kernels.
  static Pointer take(size_t bytes);

  void pass_barrier();
  // A warp reads or writes these bytes. Null, or what another warp has done with one of them, such
  // as "written".
  const char* read(size_t offset, size_t count, uint32_t warp) {
    const auto own = static_cast<Touch>(now_ + warp);
    const auto several = static_cast<Touch>(now_ + kSeveral);
    return in_steps(offset, count, [&]<size_t kBytes>(size_t at) -> const char* {
      if (any_others<kBytes>(&written_[at], own)) return "written";
      Touch* const read = &read_[at];
      for (size_t i = 0; i < kBytes; ++i) read[i] = others(read[i], own) != 0 ? several : own;
      return nullptr;
    });
  }
  const char* write(size_t offset, size_t count, uint32_t warp) {
    const auto own = static_cast<Touch>(now_ + warp);
    return in_steps(offset, count, [&]<size_t kBytes>(size_t at) -> const char* {
      if (any_others<kBytes>(&written_[at], own)) return "written";
      if (any_others<kBytes>(&read_[at], own)) return "read";
      Touch* const written = &written_[at];
      for (size_t i = 0; i < kBytes; ++i) written[i] = own;
      return nullptr;
    });
  }

 private:
  // Touches are numbers: the time, and in the lower bits which warp, or several. Small ones, of
  // which a vector of the host holds many.
  using Touch = uint16_t;
  static constexpr Touch kSeveral = 63;
  static constexpr Touch kWarps = 64;
  // All bits are set for a touch since the last barrier by another warp than that whose touches are
  // now `own`; else none is.
  Touch others(Touch touch, Touch own) const {
    return static_cast<Touch>((touch >= now_ ? 0xFFFF : 0) & (touch != own ? 0xFFFF : 0));
  }
  template <size_t kBytes>
  bool any_others(const Touch* touches, Touch own) const {
    Touch any = 0;
    for (size_t i = 0; i < kBytes; ++i) any |= others(touches[i], own);
    return any != 0;
  }
  // Does it for all bytes, some at a time, which the compiler makes vectors of; returns the first
  // answer that is not null.
  template <typename Step>
  static const char* in_steps(size_t at, size_t count, Step step) {
    const char* found = nullptr;
    for (; count >= 32 && found == nullptr; count -= 32, at += 32) {
      found = step.template operator()<32>(at);
    }
    for (; count >= 16 && found == nullptr; count -= 16, at += 16) {
      found = step.template operator()<16>(at);
    }
    for (; count >= 4 && found == nullptr; count -= 4, at += 4) {
      found = step.template operator()<4>(at);
    }
    for (; count > 0 && found == nullptr; --count, ++at) found = step.template operator()<1>(at);
    return found;
  }

  Touch now_ = kWarps;
  std::vector<Touch> written_;  // by byte
  std::vector<Touch> read_;
};

}  // namespace lockstep::ptx
