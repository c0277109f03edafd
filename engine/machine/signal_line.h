// One cache line with a number that only grows: a thread waits until it has reached a value. The
// wait spins first and sleeps in the kernel (futex) after that, so that a short wait costs no
// system call and a long one no processor time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep {

// Two lines apart: the adjacent-line prefetcher of x86 fetches pairs.
inline constexpr size_t kLineBytes = 128;

// The behaviour of a waiting thread before it sleeps.
struct Patience {
  uint32_t spins = 0;   // how often it looks, a pause apart
  uint32_t yields = 0;  // how often it then lets another thread have the processor (a system call)
};

// The number and the count of threads that sleep until it changes are one atomic word, so that the
// two sides are ordered by that word's modification order. A sleeper adds itself by a
// compare-exchange that fails if the number has changed; set() replaces both parts by one exchange.
// So either the exchange sees the sleeper and wakes it, or the sleeper sees the number and does not
// sleep. What lies between the sleeper's compare-exchange and its sleep is the kernel's to check:
// futex returns at once if the number is no longer the one that was seen.
class alignas(kLineBytes) SignalLine {
 public:
  // Publishes everything written before to every thread that sees `value`. One writer at a time;
  // values ascend (with wrap-around: the distance to any waiter's value is below 2^31). Enters the
  // kernel only if a thread sleeps.
  void set(uint32_t value);

  // Returns once the number has reached `value`. Spins `spins` times before it sleeps.
  void wait_for(uint32_t value, uint32_t spins) { wait_for(value, Patience{spins, 0}); }
  void wait_for(uint32_t value, Patience patience);

  uint32_t value() const { return number(state_.load(std::memory_order_acquire)); }

  // Threads that sleep on it, or are about to.
  uint32_t sleepers() const {
    return static_cast<uint32_t>(state_.load(std::memory_order_relaxed));
  }

 private:
  static uint32_t number(uint64_t state) { return static_cast<uint32_t>(state >> 32U); }
  static bool reached(uint64_t state, uint32_t value) {
    return static_cast<int32_t>(number(state) - value) >= 0;
  }
  bool reached(uint32_t value) const {
    return reached(state_.load(std::memory_order_acquire), value);
  }
  void sleep_until(uint32_t value);

  // Number in the upper half, sleepers in the lower. set()'s release pairs with every acquire in
  // the waiting calls; a sleeper's read-modify-write between them belongs to the release sequence.
  std::atomic<uint64_t> state_ = 0;
};

// Signal lines on pages of their own, on one node: the threads that look at them again and again
// should find them near.
class SignalLines {
 public:
  // `node`: where the pages should lie; -1, or a node that has none left: wherever the kernel likes
  // (a matter of nanoseconds, so no error). Throws std::bad_alloc when there is no memory.
  explicit SignalLines(size_t count, int node = -1);
  ~SignalLines();

  SignalLines(const SignalLines&) = delete;
  SignalLines& operator=(const SignalLines&) = delete;

  size_t size() const { return count_; }
  SignalLine& operator[](size_t index) { return lines_[index]; }

 private:
  size_t count_;
  size_t size_bytes_;
  SignalLine* lines_;
};

}  // namespace lockstep
