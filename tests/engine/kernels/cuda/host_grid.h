// Plays the grid of a kernel: the threads of a block are contexts that take turns on the calling
// thread, each until it waits for the others; the blocks follow one another. Several threads may
// each play a grid of their own, so that kernels which wait for one another (of different ranks)
// can be tested.
//
// A thread that meets the others must do so with all of its warp, or its block: whoever has ended
// while others wait is reported as the bug that it would be on a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/kernels/cuda/gpu_words.h"

namespace lockstep {

class HostGrid {
 public:
  static constexpr size_t kExchangeWords = 6;
  using Words = std::array<uint32_t, kExchangeWords>;
  using WarpWords = std::array<Words, kWarpThreads>;

  struct Shape {
    unsigned columns = 1;
    unsigned rows = 1;
    unsigned threads = kWarpThreads;
    size_t shared_bytes = 0;
  };

  // In which order the calling thread's grids play their blocks from now on: a GPU's may come in
  // any.
  enum class Order { kForward, kReverse, kShuffled };
  static void set_order(Order order, uint32_t seed = 0);

  // Returns when all threads of all blocks have run `kernel`. Shared memory begins as garbage.
  static void run(const Shape& shape, const std::function<void()>& kernel);

  // For the kernel.
  static const Shape& shape();
  static unsigned thread();
  static unsigned block_column();
  static unsigned block_row();
  static std::byte* shared_memory();
  static void meet_block();
  static void meet_warp();
  // What every lane of the warp has brought. Valid until the lane's next call of any of these.
  static const WarpWords& exchange(const Words& own);
  // Lets other threads have their turns.
  static void rest();
  // The current thread's copies that have been begun: not closed yet, and in groups.
  struct Copy {
    std::byte* shared;
    const std::byte* source;
    size_t bytes;
  };
  struct Copies {
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> closed;
  };
  static Copies& copies();
  static void check_aligned(const void* address, size_t bytes);
};

}  // namespace lockstep
