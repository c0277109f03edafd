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
    const uint32_t own = now_ + warp;
    return in_steps(offset, count, [&]<size_t kBytes>(size_t at) -> const char* {
      if (any_others<kBytes>(&written_[at], own)) return "written";
      uint32_t* const read = &read_[at];
      for (size_t i = 0; i < kBytes; ++i) {
        read[i] = is_others(read[i], own) ? now_ + kSeveral : own;
      }
      return nullptr;
    });
  }
  const char* write(size_t offset, size_t count, uint32_t warp) {
    const uint32_t own = now_ + warp;
    return in_steps(offset, count, [&]<size_t kBytes>(size_t at) -> const char* {
      if (any_others<kBytes>(&written_[at], own)) return "written";
      if (any_others<kBytes>(&read_[at], own)) return "read";
      uint32_t* const written = &written_[at];
      for (size_t i = 0; i < kBytes; ++i) written[i] = own;
      return nullptr;
    });
  }

 private:
  // Touches are numbers: the time, and in the lower bits which warp, or several.
  static constexpr uint32_t kSeveral = 63;
  static constexpr uint32_t kWarps = 64;
  // True for a touch since the last barrier by another warp than that whose touches are now `own`.
  bool is_others(uint32_t touch, uint32_t own) const { return (touch >= now_) & (touch != own); }
  template <size_t kBytes>
  bool any_others(const uint32_t* touches, uint32_t own) const {
    bool any = false;
    for (size_t i = 0; i < kBytes; ++i) any |= is_others(touches[i], own);
    return any;
  }
  // Does it for all bytes, some at a time, which the compiler makes vectors of; returns the first
  // answer that is not null.
  template <typename Step>
  static const char* in_steps(size_t at, size_t count, Step step) {
    const char* found = nullptr;
    for (; count >= 16 && found == nullptr; count -= 16, at += 16) {
      found = step.template operator()<16>(at);
    }
    for (; count >= 4 && found == nullptr; count -= 4, at += 4) {
      found = step.template operator()<4>(at);
    }
    for (; count > 0 && found == nullptr; --count, ++at) found = step.template operator()<1>(at);
    return found;
  }

  uint32_t now_ = kWarps;
  std::vector<uint32_t> written_;  // by byte
  std::vector<uint32_t> read_;
};

}  // namespace lockstep::ptx
