// Runs the grid of a kernel on the host: the threads of a block are contexts that take turns on the
// calling thread, each until it waits for the others; the blocks follow one another. Several
// threads may each run a grid of their own, so that kernels which wait for one another (of
// different ranks) can be tested.
//
// A thread that meets the others must do so with all of its warp, or its block: a thread that has
// ended while others wait is reported as the bug that it would be on a GPU. So is a thread that
// ends without having waited for the launches before (launch_overlap.h) or while its copies go on,
// and what it loads or stores by the words of gpu_code.h before it has waited; what it does by
// plain references is not seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "engine/kernels/cuda/gpu_words.h"

namespace lockstep {

struct HostBlock;

class HostGrid {
 public:
  static constexpr size_t kExchangeWords = 6;
  using Words = std::array<uint32_t, kExchangeWords>;
  using WarpWords = std::array<Words, kWarpThreads>;
  // The factors of a warp's tile product: A by its rows, B by its columns.
  struct TileNumbers {
    std::array<std::array<double, 16>, 16> a;
    std::array<std::array<double, 16>, 8> b;
  };

  struct Shape {
    unsigned columns = 1;
    unsigned rows = 1;
    unsigned threads = kWarpThreads;
    size_t shared_bytes = 0;
  };

  // In which order the calling thread's grids run their blocks from now on: a GPU's may come in
  // any.
  enum class Order { kForward, kReverse, kShuffled };
  static void set_order(Order order, uint32_t seed = 0);
  // Whether the calling thread launches what multiplies by products of warp groups, where a GPU
  // would: true at first.
  static void set_group_products(bool has);
  static bool has_group_products();

  // Runs what a launch may do before those before it are done: the first block's threads, until
  // each waits for them. Shared memory begins as garbage. No other grid is being run by this
  // thread, but others may have begun.
  HostGrid(const Shape& shape, std::function<void()> kernel);
  ~HostGrid();
  HostGrid(const HostGrid&) = delete;
  HostGrid& operator=(const HostGrid&) = delete;

  // All the rest, once; by the same thread. Those before are done.
  void finish();

  // For the kernel.
  static const Shape& shape();
  static unsigned thread();
  static unsigned block_column();
  static unsigned block_row();
  static std::byte* shared_memory();
  static void wait_for_launches();
  static void let_next_launch_begin();
  static void meet_block();
  static void meet_warp();
  // The words that every lane of the warp has brought. Valid until the lane's next call of any of
  // these.
  static const WarpWords& exchange(const Words& own);
  // The same words, from which `read` has taken the factors once for all lanes.
  static const TileNumbers& exchange_tiles(const Words& own,
                                           void (*read)(const WarpWords&, TileNumbers&));
  // Lets other threads have their turns.
  static void rest();
  // Copies 16 bytes at most: when waited for; garbage until then.
  static void begin_copy(std::byte* shared, const std::byte* source, size_t bytes);
  static void close_copies();
  // All but the last `groups`.
  static void wait_for_copies(size_t groups);
  // Checks a load or store by one of gpu_code.h's words.
  static void check_access(const void* address, size_t bytes);
  // Checks a flag by which other GPUs are waited for.
  static void check_flag();

 private:
  std::unique_ptr<HostBlock> block_;
};

}  // namespace lockstep
