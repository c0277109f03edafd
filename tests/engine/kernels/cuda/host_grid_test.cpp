// The rig itself: threads that take turns meet, exchange and multiply as those of a GPU do.
#include "tests/engine/kernels/cuda/host_grid.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/engine/kernels/cuda/gpu_code.h"

namespace lockstep {
namespace {

GPU_KERNEL void number_threads(uint32_t* numbers) {
  follow_launches();
  const unsigned block = block_row() * block_columns() + block_column();
  numbers[block * thread_count() + thread_index()] =
      block * 1000 + warp_index() * 100 + lane_index();
}

TEST(HostGrid, runs_every_thread_of_every_block_once) {
  std::vector<uint32_t> numbers(3 * 2 * 64, 0);
  launch(nullptr, {.columns = 3, .rows = 2, .threads = 64}, number_threads, numbers.data());
  for (unsigned block = 0; block < 6; ++block) {
    for (unsigned thread = 0; thread < 64; ++thread) {
      EXPECT_EQ(numbers[block * 64 + thread], block * 1000 + thread / 32 * 100 + thread % 32);
    }
  }
}

// Sums over the warp by exchanges, over the block by shared memory.
GPU_KERNEL void add_up(const uint32_t* values, uint32_t* sum) {
  follow_launches();
  auto* parts = reinterpret_cast<uint32_t*>(shared_memory());
  uint32_t value = values[thread_index()];
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    value += from_lane_across(value, distance);
  }
  if (lane_index() == 5) parts[warp_index()] = value;
  meet_block();
  if (thread_index() != 0) return;
  *sum = 0;
  for (unsigned warp = 0; warp < thread_count() / kWarpThreads; ++warp) *sum += parts[warp];
}

TEST(HostGrid, lanes_exchange_and_warps_share_memory) {
  std::vector<uint32_t> values(128);
  std::iota(values.begin(), values.end(), 7);
  uint32_t sum = 0;
  launch(nullptr, {.threads = 128, .shared_bytes = 16}, add_up, values.data(), &sum);
  EXPECT_EQ(sum, std::accumulate(values.begin(), values.end(), 0U));
}

// A [16][16] times B [16][8], with the fragments gathered as the instruction wants them.
GPU_KERNEL void multiply(const uint16_t* a, const uint16_t* b, float* product) {
  follow_launches();
  const unsigned group = lane_index() / 4;
  const unsigned place = lane_index() % 4;
  const auto pair = [](uint16_t lower, uint16_t upper) {
    return static_cast<uint32_t>(lower) | static_cast<uint32_t>(upper) << 16U;
  };
  uint32_t rows[4];
  uint32_t columns[2];
  for (unsigned index = 0; index < 4; ++index) {
    const uint16_t* from = a + (group + index % 2 * 8) * 16 + 2 * place + index / 2 * 8;
    rows[index] = pair(from[0], from[1]);
  }
  for (unsigned index = 0; index < 2; ++index) {
    const uint16_t* from = b + (2 * place + index * 8) * 8 + group;
    columns[index] = pair(from[0], from[8]);
  }
  float sums[4] = {1, 1, 1, 1};
  multiply_tile(sums, rows, columns);
  for (unsigned index = 0; index < 4; ++index) {
    product[(group + index / 2 * 8) * 8 + 2 * place + index % 2] = sums[index];
  }
}

TEST(HostGrid, a_warp_multiplies_tiles) {
  std::mt19937 generator(1);
  const auto small = [&] { return static_cast<float>(static_cast<int>(generator() % 9) - 4); };
  std::vector<uint16_t> a(16 * 16);
  std::vector<uint16_t> b(16 * 8);
  for (uint16_t& value : a) value = to_bf16(small());
  for (uint16_t& value : b) value = to_bf16(small());
  std::vector<float> product(16 * 8);
  launch(nullptr, {}, multiply, a.data(), b.data(), product.data());
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned column = 0; column < 8; ++column) {
      float expected = 1;
      for (unsigned k = 0; k < 16; ++k) {
        expected += from_bf16(a[row * 16 + k]) * from_bf16(b[k * 8 + column]);
      }
      EXPECT_EQ(product[row * 8 + column], expected) << row << ", " << column;
    }
  }
}

// Two grids that wait for each other.
GPU_KERNEL void answer(uint32_t* mine, const uint32_t* other) {
  wait_for_launches();
  if (thread_index() == 0) store_release(mine, block_column() + 1);
  while (load_acquire(other) < block_column() + 1) rest();
}

TEST(HostGrid, grids_on_two_threads_can_wait_for_each_other) {
  uint32_t first = 0;
  uint32_t second = 0;
  std::thread partner([&] {
    launch(nullptr, {.columns = 3}, answer, &second, static_cast<const uint32_t*>(&first));
  });
  launch(nullptr, {.columns = 3}, answer, &first, static_cast<const uint32_t*>(&second));
  partner.join();
  EXPECT_EQ(first, 3U);
  EXPECT_EQ(second, 3U);
}

// Lanes copy a word each, twice, and look at it before and after they have waited.
GPU_KERNEL void copy_words(const uint32_t* words, uint32_t* seen) {
  follow_launches();
  auto* shared = reinterpret_cast<uint32_t*>(shared_memory()) + 2 * thread_index();
  const auto* source = reinterpret_cast<const std::byte*>(words + 2 * thread_index());
  begin_copy_4(reinterpret_cast<std::byte*>(shared), source);
  close_copies();
  begin_copy_4(reinterpret_cast<std::byte*>(shared + 1), source + 4);
  close_copies();
  wait_for_copies<1>();
  seen[2 * thread_index()] = shared[0];
  const bool early = shared[1] == words[2 * thread_index() + 1];
  wait_for_copies<0>();
  seen[2 * thread_index() + 1] = early ? 0 : shared[1];
}

TEST(HostGrid, copies_are_there_when_they_have_been_waited_for) {
  std::vector<uint32_t> words(64);
  std::iota(words.begin(), words.end(), 100);
  std::vector<uint32_t> seen(64);
  launch(nullptr, {.threads = 32, .shared_bytes = 256}, copy_words, words.data(), seen.data());
  EXPECT_EQ(seen, words);
}

GPU_KERNEL void leave_early() {
  follow_launches();
  if (thread_index() == 3) return;
  meet_block();
}

TEST(HostGridDeathTest, tells_of_threads_that_wait_for_ever) {
  EXPECT_DEATH(launch(nullptr, {.threads = 32}, leave_early), "31 of 32 threads wait");
}

GPU_KERNEL void forget_to_wait() {
  if (lane_index() != 7) follow_launches();
}

TEST(HostGridDeathTest, tells_of_threads_that_end_without_having_waited_for_launches) {
  EXPECT_DEATH(launch(nullptr, {.columns = 2, .threads = 64}, forget_to_wait),
               "thread 7 of block 0, 0 ends without having waited");
}

GPU_KERNEL void load_early(const uint32_t* words) {
  load_4(words);
  follow_launches();
}
GPU_KERNEL void store_early(std::byte* bytes) {
  store_8(bytes, {});
  follow_launches();
}

TEST(HostGridDeathTest, tells_of_loads_and_stores_before_launches_are_waited_for) {
  alignas(8) uint32_t words[2] = {};
  EXPECT_DEATH(launch(nullptr, {}, load_early, static_cast<const uint32_t*>(words)),
               "4 bytes at .* are used before");
  EXPECT_DEATH(launch(nullptr, {}, store_early, reinterpret_cast<std::byte*>(words)),
               "8 bytes at .* are used before");
}

// Asks for a word of weights as early as it may; shared memory it may use.
GPU_KERNEL void copy_early(const uint32_t* words, uint32_t* seen) {
  auto* shared = shared_memory() + 8 * thread_index();
  begin_copy_4(shared, reinterpret_cast<const std::byte*>(words));
  close_copies();
  store_8(shared_memory() + 8 * (kWarpThreads + thread_index()), {});
  follow_launches();
  wait_for_copies<0>();
  seen[thread_index()] = load_4(shared);
}
constexpr HostGrid::Shape kCopyEarly = {.shared_bytes = 16 * kWarpThreads};

TEST(HostGrid, weights_may_be_asked_for_before_launches_are_waited_for) {
  uint32_t word = 7;
  std::vector<uint32_t> seen(kWarpThreads);
  HostGrid grid(kCopyEarly, [&] { copy_early(&word, seen.data()); });
  EXPECT_EQ(seen[0], 0U);
  grid.finish();
  EXPECT_EQ(seen, std::vector<uint32_t>(kWarpThreads, 7));
}

TEST(HostGridDeathTest, tells_of_early_copies_of_what_a_launch_before_writes) {
  uint32_t word = 7;
  std::vector<uint32_t> seen(kWarpThreads);
  HostGrid grid(kCopyEarly, [&] { copy_early(&word, seen.data()); });
  word = 8;
  EXPECT_DEATH(grid.finish(), "were copied before a launch before had written them");
}

GPU_KERNEL void leave_copies(const std::byte* bytes) {
  begin_copy_4(shared_memory(), bytes);
  close_copies();
  follow_launches();
}

TEST(HostGridDeathTest, tells_of_threads_that_end_while_their_copies_go_on) {
  alignas(4) std::byte bytes[4] = {};
  EXPECT_DEATH(launch(nullptr, {.shared_bytes = 4}, leave_copies, &bytes[0]), "copies go on");
}

GPU_KERNEL void wait_for_another_gpu(const uint32_t* flag) {
  follow_launches();
  while (load_acquire(flag) == 0) rest();
}

TEST(HostGridDeathTest, tells_of_waits_for_other_gpus_with_the_next_launch_let_in) {
  uint32_t flag = 1;
  EXPECT_DEATH(launch(nullptr, {}, wait_for_another_gpu, &flag), "waits for another GPU");
}

// The first block of a grid begins before the launches before are done; the others do not.
GPU_KERNEL void see_value(const uint32_t* value, uint32_t* seen) {
  const uint32_t before = *value;
  meet_block();
  follow_launches();
  meet_block();
  seen[block_column() * thread_count() + thread_index()] = 100 * before + *value;
}

TEST(HostGrid, plays_a_first_block_as_far_as_it_may_come_before_launches_are_done) {
  uint32_t value = 1;
  std::vector<uint32_t> seen(128);
  HostGrid grid({.columns = 2, .threads = 64}, [&] { see_value(&value, seen.data()); });
  value = 2;
  // Another one on the same thread, meanwhile.
  uint32_t other_value = 3;
  std::vector<uint32_t> other_seen(64);
  launch(nullptr, {.threads = 64}, see_value, &other_value, other_seen.data());
  grid.finish();
  for (unsigned thread = 0; thread < 64; ++thread) {
    EXPECT_EQ(seen[thread], 102U);
    EXPECT_EQ(seen[64 + thread], 202U);
    EXPECT_EQ(other_seen[thread], 303U);
  }
}

GPU_KERNEL void load_badly(const std::byte* bytes) {
  follow_launches();
  stream_16(bytes + 4);
}

TEST(HostGridDeathTest, tells_of_loads_that_are_not_aligned) {
  alignas(16) std::byte bytes[32] = {};
  EXPECT_DEATH(launch(nullptr, {}, load_badly, static_cast<const std::byte*>(bytes)), "aligned");
}

}  // namespace
}  // namespace lockstep
