#include "engine/machine/signal_line.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little);

// The half that holds the number: a change of the sleepers' count is nothing to wake up for.
uint32_t* number_address(std::atomic<uint64_t>& state) {
  return reinterpret_cast<uint32_t*>(&state) + 1;
}

void futex_wait(std::atomic<uint64_t>& state, uint32_t expected) {
  syscall(SYS_futex, number_address(state), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint64_t>& state) {
  syscall(SYS_futex, number_address(state), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void SignalLine::set(uint32_t value) {
  const uint64_t before =
      state_.exchange(static_cast<uint64_t>(value) << 32U, std::memory_order_release);
  if (static_cast<uint32_t>(before) != 0) futex_wake_all(state_);
}

void SignalLine::wait_for(uint32_t value, Patience patience) {
  if (reached(value)) return;
  for (uint32_t spin = 0; spin < patience.spins; ++spin) {
    _mm_pause();
    if (reached(value)) return;
  }
  for (uint32_t yield = 0; yield < patience.yields; ++yield) {
    sched_yield();
    if (reached(value)) return;
  }
  sleep_until(value);
}

void SignalLine::sleep_until(uint32_t value) {
  uint64_t state = state_.load(std::memory_order_acquire);
  while (!reached(state, value)) {
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_relaxed,
                                      std::memory_order_acquire)) {
      continue;
    }
    const uint32_t seen = number(state);
    do {
      futex_wait(state_, seen);
      state = state_.load(std::memory_order_acquire);
    } while (number(state) == seen);
  }
}

}  // namespace lockstep
