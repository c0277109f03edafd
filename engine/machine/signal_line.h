// One cache line with a number that only grows: a thread waits until it has reached a value. The
// wait spins first and sleeps in the kernel (futex) after that, so that a short wait costs no
// system call and a long one no processor time.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep {

// Two lines apart: the adjacent-line prefetcher of x86 fetches pairs.
inline constexpr size_t kLineBytes = 128;

class alignas(kLineBytes) SignalLine {
 public:
  // Publishes everything written before to whoever sees `value`. One writer; values ascend (with
  // wrap-around: the distance to any waiter's value is below 2^31).
  void set(uint32_t value);

  // Returns once the number has reached `value`. Spins `spins` times before it sleeps.
  void wait_for(uint32_t value, uint32_t spins);

  uint32_t value() const { return value_.load(std::memory_order_acquire); }

 private:
  bool reached(uint32_t value) const {
    return static_cast<int32_t>(value_.load(std::memory_order_acquire) - value) >= 0;
  }

  std::atomic<uint32_t> value_ = 0;     // set()'s exchange pairs with reached()
  std::atomic<uint32_t> sleepers_ = 0;  // wait_for()'s increment pairs with set()'s load
};

}  // namespace lockstep
