#include "engine/machine/signal_line.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace lockstep {
namespace {

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace

void SignalLine::set(uint32_t value) {
  // An exchange is a full fence: a waiter that this load does not see sleeping will see the value.
  value_.exchange(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(value_);
}

void SignalLine::wait_for(uint32_t value, uint32_t spins) {
  for (uint32_t spin = 0; spin < spins; ++spin) {
    if (reached(value)) return;
    _mm_pause();
  }
  if (reached(value)) return;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const uint32_t seen = value_.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - value) >= 0) break;
    futex_wait(value_, seen);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace lockstep
