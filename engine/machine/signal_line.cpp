#include "engine/machine/signal_line.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <numaif.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "engine/base/checked_math.h"

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

constexpr size_t kPageBytes = 4096;

// Preferred, not bound: a full node must not turn a few pages into a failure.
void prefer_node(void* memory, size_t size_bytes, int node) {
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  const auto bit = static_cast<size_t>(node);
  std::vector<unsigned long> mask(bit / kBits + 1);
  mask[bit / kBits] = 1UL << (bit % kBits);
  // The kernel takes one bit less than it is told. A refusal leaves the pages to the default.
  mbind(memory, size_bytes, MPOL_PREFERRED, mask.data(), mask.size() * kBits + 1, 0);
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

SignalLines::SignalLines(size_t count, int node)
    : count_(count), size_bytes_(round_up(count * sizeof(SignalLine) + 1, kPageBytes)) {
  static_assert(std::is_trivially_destructible_v<SignalLine>);
  void* memory =
      mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (node >= 0) prefer_node(memory, size_bytes_, node);
  lines_ = static_cast<SignalLine*>(memory);
  std::uninitialized_value_construct_n(lines_, count);
}

SignalLines::~SignalLines() {
  munmap(lines_, size_bytes_);
}

}  // namespace lockstep
