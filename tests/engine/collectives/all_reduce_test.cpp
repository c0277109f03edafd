#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/collectives/shared_memory.h"
#include "engine/tensor/format.h"
#include "tests/engine/collectives/random_partials.h"
#include "tests/engine/collectives/simulated_ranks.h"

namespace lockstep {
namespace {

struct Size {
  size_t rows = 0;
  size_t columns = 0;
};

// The thread sanitizer finds in a few thousand elements what there is to find.
#ifdef __SANITIZE_THREAD__
constexpr Size kSizes[] = {{1, 1}, {1, 7}, {3, 33}, {5, 999}};
#else
constexpr Size kSizes[] = {{1, 1}, {1, 7}, {3, 33}, {2, 4096}, {17, 999}, {1, 100003}};
#endif

float round_trip(float value) {
  return bf16_to_float(float_to_bf16(value));
}

// Adds what all ranks must hold, element by element, as the header says it.
void add_reference(const std::vector<std::vector<float>>& partials,
                   const std::vector<size_t>& contributors, bool bf16, std::vector<float>& output) {
  for (size_t index = 0; index < output.size(); ++index) {
    float sum = 0;
    bool first = true;
    for (const size_t rank : contributors) {
      const float value = bf16 ? round_trip(partials[rank][index]) : partials[rank][index];
      sum = first ? value : sum + value;
      first = false;
    }
    output[index] += bf16 ? round_trip(sum) : sum;
  }
}

// Partial sums, output and the bf16 areas of one rank count and size, in simulated ranks' arenas.
class Reduction {
 public:
  Reduction(size_t rank_count, size_t worker_count, Size size, std::vector<size_t> contributors)
      : size_(size),
        contributors_(std::move(contributors)),
        ranks_(std::vector(rank_count, std::vector(worker_count, -1)),
               (partial_floats() + output_floats() + size.rows * size.columns + 64) * sizeof(float),
               true) {}

  // Three sums one after another into the same output, through one partial buffer: it is written
  // again right after the barrier. Returns how many elements differ from the reference.
  size_t wrong_elements(bool bf16) {
    std::vector<std::vector<std::vector<float>>> partials;  // by round, rank
    std::vector<std::vector<float>> expected;               // by round
    std::vector<float> output = random_values(size_.rows * size_.columns, 99);
    for (size_t rank = 0; rank < ranks_.count(); ++rank) write_output(rank, output);
    for (uint32_t round = 0; round < kRounds; ++round) {
      partials.emplace_back();
      for (uint32_t rank = 0; rank < ranks_.count(); ++rank) {
        partials.back().push_back(random_values(output.size(), 10 * round + rank + 1));
      }
      add_reference(partials.back(), contributors_, bf16, output);
      expected.push_back(output);
    }
    std::vector<size_t> wrong(ranks_.count() * 16);  // a line apart
    ranks_.run([&](size_t rank, size_t worker) {
      for (uint32_t round = 0; round < kRounds; ++round) {
        if (worker == 0) write_partial(rank, partials[round][rank]);
        ranks_.meet(rank, worker);
        reduce(rank, worker, bf16);
        ranks_.meet(rank, worker);
        if (worker == 0) wrong[rank * 16] += count_wrong(rank, expected[round]);
      }
    });
    size_t sum = 0;
    for (const size_t one : wrong) sum += one;
    return sum;
  }

 private:
  static constexpr uint32_t kRounds = 3;

  size_t partial_stride() const { return size_.columns + 5; }
  size_t output_stride() const { return size_.columns + 2; }
  size_t partial_floats() const { return size_.rows * partial_stride(); }
  size_t output_floats() const { return size_.rows * output_stride(); }

  float* partial(size_t rank) { return ranks_.at<float>(rank, 0); }
  float* output(size_t rank) { return partial(rank) + partial_floats(); }

  void write_partial(size_t rank, const std::vector<float>& values) {
    for (size_t row = 0; row < size_.rows; ++row) {
      std::copy_n(values.data() + row * size_.columns, size_.columns,
                  partial(rank) + row * partial_stride());
    }
  }

  void write_output(size_t rank, const std::vector<float>& values) {
    for (size_t row = 0; row < size_.rows; ++row) {
      std::copy_n(values.data() + row * size_.columns, size_.columns,
                  output(rank) + row * output_stride());
    }
  }

  void reduce(size_t rank, size_t worker, bool bf16) {
    AllReduce sum{.partial = partial(rank),
                  .partial_stride = partial_stride(),
                  .output = output(rank),
                  .output_stride = output_stride(),
                  .row_count = size_.rows,
                  .column_count = size_.columns,
                  .contributors = contributors_};
    if (bf16) {
      sum.bf16_partial = reinterpret_cast<uint16_t*>(output(rank) + output_floats());
      sum.bf16_sum = sum.bf16_partial + size_.rows * size_.columns;
    }
    all_reduce(sum, ranks_.peers(rank), ranks_.barrier(rank), worker, ranks_.worker_count(rank));
  }

  // Bits, and the gaps between rows untouched.
  size_t count_wrong(size_t rank, const std::vector<float>& expected) {
    size_t wrong = 0;
    const float* row = output(rank);
    for (size_t index = 0; index < size_.rows; ++index, row += output_stride()) {
      for (size_t column = 0; column < size_.columns; ++column) {
        const float& right = expected[index * size_.columns + column];
        wrong += std::memcmp(row + column, &right, sizeof(float)) != 0 ? 1 : 0;
      }
      wrong += row[size_.columns] != 0 || row[size_.columns + 1] != 0 ? 1 : 0;
    }
    return wrong;
  }

  Size size_;
  std::vector<size_t> contributors_;
  MadeUpRanks ranks_;
};

std::vector<std::vector<size_t>> contributor_sets(size_t rank_count) {
  std::vector<size_t> all(rank_count);
  for (size_t rank = 0; rank < rank_count; ++rank) all[rank] = rank;
  std::vector<std::vector<size_t>> sets = {all};
  if (rank_count > 1) sets.push_back({rank_count - 1});
  if (rank_count > 2) sets.push_back({0, rank_count - 1});
  return sets;
}

TEST(AllReduce, any_number_of_workers_gives_the_bits_of_the_sum_in_rank_order) {
  for (const size_t ranks : {1U, 2U, 3U, 4U, 5U}) {
    for (const size_t workers : {1U, 2U, 3U}) {
      for (const Size& size : kSizes) {
        for (const auto& contributors : contributor_sets(ranks)) {
          Reduction reduction(ranks, workers, size, contributors);
          for (const bool bf16 : {false, true}) {
            EXPECT_EQ(reduction.wrong_elements(bf16), 0U)
                << ranks << " ranks of " << workers << " workers, " << size.rows << " x "
                << size.columns << ", " << contributors.size() << " contributors, bf16 " << bf16;
          }
        }
      }
    }
  }
}

// Outputs that are not equal on all ranks, as GPUs and processors round what each computes for
// itself: what becomes of a row does not depend on how many others there are.
TEST(AllReduce, unequal_outputs_become_equal_ones_that_depend_on_no_other_row) {
  constexpr size_t kRows = 13;
  constexpr size_t kColumns = 64;
  for (const size_t rank_count : {2U, 3U}) {
    MadeUpRanks ranks(std::vector(rank_count, std::vector{-1, -1}),
                      3 * kRows * kColumns * sizeof(float), true);
    std::vector<size_t> contributors(rank_count);
    std::iota(contributors.begin(), contributors.end(), 0U);
    const auto rows_of = [&](size_t rank, size_t which) {
      return ranks.at<float>(rank, which * kRows * kColumns * sizeof(float));
    };
    ranks.run([&](size_t rank, size_t worker) {
      if (worker == 0) {
        const auto number = static_cast<uint32_t>(rank);
        std::ranges::copy(random_values(kRows * kColumns, number + 1), rows_of(rank, 0));
        const std::vector<float> before = random_values(kRows * kColumns, 10 + number);
        for (const size_t which : {1U, 2U}) std::ranges::copy(before, rows_of(rank, which));
      }
      ranks.meet(rank, worker);
      const auto add_rows = [&](size_t which, size_t row, size_t count) {
        all_reduce({.partial = rows_of(rank, 0) + row * kColumns,
                    .partial_stride = kColumns,
                    .output = rows_of(rank, which) + row * kColumns,
                    .output_stride = kColumns,
                    .row_count = count,
                    .column_count = kColumns,
                    .contributors = contributors},
                   ranks.peers(rank), ranks.barrier(rank), worker, 2);
      };
      add_rows(1, 0, kRows);
      for (size_t row = 0; row < kRows; row += 4) {
        add_rows(2, row, std::min<size_t>(4, kRows - row));
      }
      ranks.meet(rank, worker);
    });
    constexpr size_t kBytes = kRows * kColumns * sizeof(float);
    for (size_t rank = 0; rank < rank_count; ++rank) {
      EXPECT_EQ(std::memcmp(rows_of(rank, 1), rows_of(0, 1), kBytes), 0);
      EXPECT_EQ(std::memcmp(rows_of(rank, 2), rows_of(0, 1), kBytes), 0);
    }
  }
}

TEST(AllReduce, bf16_keeps_infinity_and_nan_and_halves_what_travels) {
  MadeUpRanks ranks({{-1}, {-1}}, 1 << 16, true);
  constexpr size_t kColumns = 64;
  const std::vector<size_t> contributors = {0, 1};
  size_t bytes[2][2] = {};  // by rank, with bf16 or not
  ranks.run([&](size_t rank, size_t worker) {
    auto* partial = ranks.at<float>(rank, 0);
    auto* output = ranks.at<float>(rank, 4096);
    partial[0] = rank == 0 ? INFINITY : 1.0F;
    partial[1] = rank == 0 ? NAN : 1.0F;
    partial[2] = rank == 0 ? 3.4e38F : 0.0F;  // rounds up to infinity
    AllReduce sum{.partial = partial,
                  .partial_stride = kColumns,
                  .output = output,
                  .output_stride = kColumns,
                  .row_count = 1,
                  .column_count = kColumns,
                  .contributors = contributors};
    for (const size_t bf16 : {0U, 1U}) {
      sum.bf16_partial = bf16 == 1 ? ranks.at<uint16_t>(rank, 8192) : nullptr;
      sum.bf16_sum = ranks.at<uint16_t>(rank, 16384);
      ranks.meet(rank, worker);
      std::fill_n(output, kColumns, 0.0F);
      ranks.meet(rank, worker);
      bytes[rank][bf16] = all_reduce(sum, ranks.peers(rank), ranks.barrier(rank), worker, 1);
      ranks.meet(rank, worker);
    }
  });
  for (const size_t rank : {0U, 1U}) {
    const auto* output = ranks.at<float>(rank, 4096);
    EXPECT_EQ(output[0], INFINITY);
    EXPECT_TRUE(std::isnan(output[1]));
    EXPECT_EQ(output[2], INFINITY);
    EXPECT_EQ(bytes[rank][0], kColumns * sizeof(float));  // half is read, half is sent
    EXPECT_EQ(bytes[rank][1] * 2, bytes[rank][0]);
  }
}

}  // namespace
}  // namespace lockstep
