#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/base/range.h"
#include "engine/collectives/shared_memory.h"
#include "tests/engine/collectives/simulated_ranks.h"

namespace lockstep {
namespace {

struct Rows {
  size_t count = 0;
  size_t bytes = 0;   // of all ranks' slices together
  size_t stride = 0;  // bytes
};

std::byte expected(size_t round, size_t row, size_t byte) {
  return static_cast<std::byte>((round * 31 + row * 7 + byte) % 251);
}

// Two buffers in turn, one barrier per round: while some still read one, others fill the other.
uint64_t gather_rounds(size_t rank_count, size_t worker_count, const Rows& rows) {
  const size_t buffer_bytes = rows.count * rows.stride;
  MadeUpRanks ranks(std::vector(rank_count, std::vector(worker_count, -1)), 2 * buffer_bytes, true);
  std::vector<uint64_t> wrong(rank_count * worker_count * 16);  // a line apart
  ranks.run([&](size_t rank, size_t worker) {
    const Range slice = share({0, rows.bytes}, rank, rank_count);
    const Range mine = share(slice, worker, worker_count);
    for (size_t round = 0; round < 5; ++round) {
      auto* buffer = ranks.at<std::byte>(rank, round % 2 * buffer_bytes);
      for (size_t row = 0; row < rows.count; ++row) {
        for (size_t byte = mine.begin; byte < mine.end; ++byte) {
          buffer[row * rows.stride + byte] = expected(round, row, byte);
        }
      }
      const size_t sent = push_rows(ranks.peers(rank), buffer + mine.begin, rows.stride, rows.count,
                                    mine.end - mine.begin);
      uint64_t& errors = wrong[(rank * worker_count + worker) * 16];
      errors += sent != (rank_count - 1) * rows.count * (mine.end - mine.begin) ? 1 : 0;
      ranks.meet(rank, worker);
      for (size_t row = 0; row < rows.count; ++row) {
        for (size_t byte = 0; byte < rows.bytes; ++byte) {
          errors += buffer[row * rows.stride + byte] != expected(round, row, byte) ? 1 : 0;
        }
        for (size_t byte = rows.bytes; byte < rows.stride; ++byte) {
          errors += buffer[row * rows.stride + byte] != std::byte{} ? 1 : 0;
        }
      }
    }
  });
  uint64_t sum = 0;
  for (const uint64_t one : wrong) sum += one;
  return sum;
}

TEST(AllGather, every_rank_holds_all_slices_after_the_barrier_and_nothing_else_is_written) {
  for (const size_t ranks : {1U, 2U, 3U, 4U, 5U}) {
    for (const size_t workers : {1U, 2U, 3U}) {
      for (const Rows& rows : {Rows{1, 1, 1}, Rows{1, 64, 64}, Rows{3, 1000, 1003},
                               Rows{7, 128, 4096}, Rows{2, 30001, 30080}}) {
        EXPECT_EQ(gather_rounds(ranks, workers, rows), 0U)
            << ranks << " ranks of " << workers << " workers, " << rows.count << " rows of "
            << rows.bytes << " bytes";
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
