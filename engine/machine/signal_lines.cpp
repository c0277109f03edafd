#include "engine/machine/signal_lines.h"

#include <numaif.h>
#include <sys/mman.h>

#include <climits>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

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
