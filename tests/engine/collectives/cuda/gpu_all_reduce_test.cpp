// The sum over GPUs' memories, its kernels run on the host: a thread per rank.
#include "engine/collectives/gpu_all_reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ostream>
#include <vector>

#include "engine/collectives/gpu_sum_launch.h"
#include "engine/tensor/format.h"
#include "tests/engine/collectives/cuda/simulated_gpus.h"
#include "tests/engine/collectives/random_partials.h"

namespace lockstep {
namespace {

struct Shape {
  size_t rows = 0;
  size_t columns = 0;
  size_t padding = 0;  // between rows; odd: rows are not aligned
};

// One element; rows shorter than a unit; units cut short; aligned rows; several blocks.
constexpr Shape kShapes[] = {{1, 1, 0}, {5, 3, 1}, {3, 33, 3}, {2, 64, 4}, {3, 401, 5}};
constexpr uint32_t kRounds = 3;
// Left of what is not to be written.
constexpr float kGap = 77;

// How a sum is sent, which but for bf16 no bit shows.
struct Sending {
  bool bf16 = false;
  bool two_shots = false;
};
constexpr Sending kSendings[] = {{false, false}, {false, true}, {true, false}, {true, true}};

std::ostream& operator<<(std::ostream& out, const Sending& sending) {
  return out << (sending.bf16 ? "bf16" : "f32") << " in " << (sending.two_shots ? 2 : 1)
             << " shots";
}

float as_it_travels(float value, bool bf16) {
  return bf16 ? bf16_to_float(float_to_bf16(value)) : value;
}

// Adds what all ranks must hold, element by element, as the header says it.
void add_reference(const std::vector<std::vector<float>>& partials,
                   const std::vector<size_t>& contributors, bool bf16, std::vector<float>& output) {
  for (size_t index = 0; index < output.size(); ++index) {
    float sum = as_it_travels(partials[contributors[0]][index], bf16);
    for (size_t next = 1; next < contributors.size(); ++next) {
      sum += as_it_travels(partials[contributors[next]][index], bf16);
    }
    output[index] += sum;
  }
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A matrix with gaps between its rows, as partial results and residuals lie.
class Rows {
 public:
  Rows(const Shape& shape, const std::vector<float>& values)
      : shape_(shape), floats_(shape.rows * stride(), kGap) {
    for (size_t row = 0; row < shape.rows; ++row) {
      std::memcpy(floats_.data() + row * stride(), values.data() + row * shape.columns,
                  shape.columns * sizeof(float));
    }
  }

  size_t stride() const { return shape_.columns + shape_.padding; }
  float* data() { return floats_.data(); }
  std::vector<float> values() const {
    std::vector<float> values;
    for (size_t row = 0; row < shape_.rows; ++row) {
      const float* begin = floats_.data() + row * stride();
      values.insert(values.end(), begin, begin + shape_.columns);
    }
    return values;
  }
  size_t written_gaps() const {
    size_t written = 0;
    for (size_t row = 0; row < shape_.rows; ++row) {
      for (size_t column = shape_.columns; column < stride(); ++column) {
        written += floats_[row * stride() + column] != kGap ? 1 : 0;
      }
    }
    return written;
  }

 private:
  Shape shape_;
  std::vector<float> floats_;
};

// Every round's partial of every rank.
class Reduction {
 public:
  Reduction(const Shape& shape, size_t rank_count, std::vector<size_t> contributors,
            const Sending& sending)
      : shape_(shape), contributors_(std::move(contributors)), sending_(sending) {
    const size_t count = shape.rows * shape.columns;
    for (uint32_t round = 0; round < kRounds; ++round) {
      partials_.emplace_back();
      for (uint32_t rank = 0; rank < rank_count; ++rank) {
        partials_.back().push_back(random_values(count, 100 * round + rank + 1));
      }
    }
    begin_ = random_values(count, 99);
  }

  // After so many rounds.
  std::vector<float> expected(uint32_t rounds) const {
    std::vector<float> output = begin_;
    for (uint32_t round = 0; round < rounds; ++round) {
      add_reference(partials_[round], contributors_, sending_.bf16, output);
    }
    return output;
  }

  Rows output() const { return Rows(shape_, begin_); }

  // One rank's part of a round.
  void reduce(const GpuPeers& peers, uint32_t round, Rows& output) const {
    reduce(peers, round, sending_.two_shots, output);
  }
  void reduce(const GpuPeers& peers, uint32_t round, bool two_shots, Rows& output,
              const uint32_t* row_limit = nullptr) const {
    Rows partial(shape_, partials_[round][peers.rank]);
    gpu_all_reduce(nullptr,
                   {.partial = partial.data(),
                    .partial_stride = partial.stride(),
                    .output = output.data(),
                    .output_stride = output.stride(),
                    .row_count = shape_.rows,
                    .column_count = shape_.columns,
                    .row_limit = row_limit,
                    .contributors = contributors_,
                    .bf16 = sending_.bf16,
                    .two_shots = two_shots},
                   peers);
  }

 private:
  Shape shape_;
  std::vector<size_t> contributors_;
  Sending sending_;
  std::vector<std::vector<std::vector<float>>> partials_;  // by round, rank
  std::vector<float> begin_;
};

std::vector<size_t> all_of(size_t rank_count) {
  std::vector<size_t> all(rank_count);
  for (size_t rank = 0; rank < rank_count; ++rank) all[rank] = rank;
  return all;
}

std::vector<std::vector<size_t>> contributor_sets(size_t rank_count) {
  std::vector<std::vector<size_t>> sets = {all_of(rank_count)};
  if (rank_count > 1) sets.push_back({rank_count - 1});
  if (rank_count > 2) sets.push_back({0, rank_count - 1});
  return sets;
}

// All rounds on all ranks, none of which waits for the others between them.
void expect_sums(MadeUpGpus& gpus, const Reduction& reduction) {
  std::vector<Rows> outputs(gpus.count(), reduction.output());
  gpus.run([&](size_t rank) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      reduction.reduce(gpus.peers(rank), round, outputs[rank]);
    }
  });
  for (size_t rank = 0; rank < gpus.count(); ++rank) {
    EXPECT_TRUE(same_bits(outputs[rank].values(), reduction.expected(kRounds))) << "rank " << rank;
    EXPECT_EQ(outputs[rank].written_gaps(), 0U);
    EXPECT_EQ(gpus.failure(rank), 0U);
  }
}

TEST(GpuAllReduce, every_rank_has_the_bits_of_the_sum_in_order_of_rank) {
  for (const size_t ranks : {1U, 2U, 3U, 4U, 7U}) {
    // One after another through the same mailboxes, whatever their shapes.
    MadeUpGpus gpus(ranks);
    for (const Shape& shape : kShapes) {
      for (const auto& contributors : contributor_sets(ranks)) {
        for (const Sending& sending : kSendings) {
          SCOPED_TRACE(::testing::Message()
                       << ranks << " ranks, " << shape.rows << " x " << shape.columns << ", "
                       << contributors.size() << " contributors, " << sending);
          expect_sums(gpus, Reduction(shape, ranks, contributors, sending));
        }
      }
    }
  }
}

// Whatever the number of ranks, one shot and two give the same bits, each after the other: of one
// unit, of as many as a block has threads, of as many as the slots hold, and around those.
TEST(GpuAllReduce, one_shot_and_two_give_the_same_bits_around_every_border) {
  constexpr size_t kSlotUnits = kGpuSlotBytes / sizeof(float) / kGpuUnitFloats;
  for (size_t ranks = 2; ranks <= 8; ++ranks) {
    MadeUpGpus gpus(ranks, /*channel_count=*/1);
    for (const size_t border :
         {size_t{1}, ranks, size_t{kGpuSumThreads}, kSlotUnits, ranks * kSlotUnits}) {
      for (const size_t columns : {border * kGpuUnitFloats, border * kGpuUnitFloats + 1}) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << columns << " columns");
        const Reduction reduction({1, columns, 0}, ranks, all_of(ranks), {});
        std::vector<Rows> outputs(ranks, reduction.output());
        gpus.run([&](size_t rank) {
          reduction.reduce(gpus.peers(rank), 0, /*two_shots=*/true, outputs[rank]);
          reduction.reduce(gpus.peers(rank), 1, /*two_shots=*/false, outputs[rank]);
        });
        for (const Rows& output : outputs) {
          ASSERT_TRUE(same_bits(output.values(), reduction.expected(2)));
        }
      }
    }
  }
}

// Limits leave of rows that were rounded up those that a pass has.
TEST(GpuAllReduce, rows_beyond_the_limit_are_left_out) {
  const std::vector<uint32_t> limits = {0, 1, 3, 5, 9};
  for (const Sending& sending : kSendings) {
    MadeUpGpus gpus(3);
    const Reduction reduction({5, 801, 3}, 3, all_of(3), sending);
    const std::vector<float> whole = reduction.expected(1);
    const std::vector<float> before = reduction.expected(0);
    for (const uint32_t& limit : limits) {
      SCOPED_TRACE(::testing::Message() << limit << " rows, " << sending);
      std::vector<float> expected = whole;
      for (size_t at = limit * 801; at < expected.size(); ++at) expected[at] = before[at];
      std::vector<Rows> outputs(3, reduction.output());
      gpus.run([&](size_t rank) {
        reduction.reduce(gpus.peers(rank), 0, sending.two_shots, outputs[rank], &limit);
      });
      for (const Rows& output : outputs) EXPECT_TRUE(same_bits(output.values(), expected));
    }
  }
}

// With one channel the launch takes two rounds or more, the last with less than a slot.
TEST(GpuAllReduce, the_count_of_channels_is_not_seen_in_the_bits) {
  for (const Sending& sending : kSendings) {
    SCOPED_TRACE(::testing::Message() << sending);
    const Reduction reduction({3, 3000, 2}, 2, {0, 1}, sending);
    for (const size_t channels : {1U, 2U, 32U}) {
      MadeUpGpus gpus(2, channels);
      expect_sums(gpus, reduction);
    }
  }
}

// Rank 0 is made to think that rank 1 has come, so it goes as far ahead as it ever may: all that it
// sends in two rounds lies there before rank 1 has read anything.
TEST(GpuAllReduce, a_rank_that_is_a_round_ahead_overwrites_nothing) {
  for (const bool bf16 : {false, true}) {
    const Reduction reduction({1, 2000, 0}, 2, {0, 1}, {.bf16 = bf16});
    MadeUpGpus gpus(2);
    for (GpuMailbox::Channel& channel : gpus.mailbox(0).channels) channel.arrived[1] = 2;
    Rows unused = reduction.output();
    for (const uint32_t round : {0U, 1U}) reduction.reduce(gpus.peers(0), round, unused);
    Rows output = reduction.output();
    for (const uint32_t round : {0U, 1U}) {
      reduction.reduce(gpus.peers(1), round, output);
      EXPECT_TRUE(same_bits(output.values(), reduction.expected(round + 1))) << "round " << round;
    }
  }
}

// In two shots: what rank 0 sends in both rounds lies there before rank 1 has read anything. Each
// gives up once, so that they can run one after the other; that is forgotten.
TEST(GpuAllReduce, a_rank_that_is_a_round_ahead_in_two_shots_overwrites_nothing) {
  for (const bool bf16 : {false, true}) {
    const Reduction reduction({1, 2000, 0}, 2, {0, 1}, {.bf16 = bf16, .two_shots = true});
    MadeUpGpus gpus(2, /*channel_count=*/1);
    const auto give_up = [&](size_t rank) {
      gpus.peers(rank).deadline_ns = 1'000'000;
      Rows unused = reduction.output();
      reduction.reduce(gpus.peers(rank), 0, unused);
      EXPECT_EQ(missing_rank(gpus.failure(rank)), 1 - rank);
      gpus.mailbox(rank).failed = 0;
    };
    give_up(1);
    EXPECT_EQ(gpus.mailbox(0).channels[0].arrived[1], 1U);
    give_up(0);
    EXPECT_EQ(gpus.mailbox(1).channels[0].arrived[0], 2U);
    Rows output = reduction.output();
    reduction.reduce(gpus.peers(1), 0, output);
    EXPECT_TRUE(same_bits(output.values(), reduction.expected(1)));
  }
}

TEST(GpuAllReduce, goes_on_when_the_count_of_rounds_begins_anew) {
  MadeUpGpus gpus(3);
  const uint32_t round = UINT32_MAX - 2;
  for (size_t rank = 0; rank < gpus.count(); ++rank) {
    for (GpuMailbox::Channel& channel : gpus.mailbox(rank).channels) {
      channel.round = round;
      for (uint32_t& arrived : channel.arrived) arrived = round;
    }
  }
  expect_sums(gpus, Reduction({1, 300, 0}, 3, {0, 1, 2}, {.two_shots = true}));
}

TEST(GpuAllReduce, bf16_keeps_infinity_and_nan) {
  MadeUpGpus gpus(2);
  const std::vector<size_t> contributors = {0, 1};
  std::vector<std::vector<float>> outputs(2, std::vector<float>(3, 0));
  gpus.run([&](size_t rank) {
    const float partial[3] = {rank == 0 ? INFINITY : 1.0F, rank == 0 ? NAN : 1.0F,
                              rank == 0 ? 3.4e38F : 0.0F};  // the last one rounds to infinity
    gpu_all_reduce(nullptr,
                   {.partial = partial,
                    .partial_stride = 3,
                    .output = outputs[rank].data(),
                    .output_stride = 3,
                    .row_count = 1,
                    .column_count = 3,
                    .contributors = contributors,
                    .bf16 = true},
                   gpus.peers(rank));
  });
  for (const auto& output : outputs) {
    EXPECT_EQ(output[0], INFINITY);
    EXPECT_TRUE(std::isnan(output[1]));
    EXPECT_EQ(output[2], INFINITY);
  }
}

TEST(GpuAllReduce, a_rank_without_a_part_gives_no_address) {
  MadeUpGpus gpus(2);
  const std::vector<size_t> contributors = {1};
  const float partial = 3;
  float outputs[2] = {10, 10};
  gpus.run([&](size_t rank) {
    gpu_all_reduce(nullptr,
                   {.partial = rank == 1 ? &partial : nullptr,
                    .output = &outputs[rank],
                    .row_count = 1,
                    .column_count = 1,
                    .contributors = contributors},
                   gpus.peers(rank));
  });
  EXPECT_EQ(outputs[0], 13);
  EXPECT_EQ(outputs[1], 13);
}

// Rank 2 never comes. Rank 1 has told rank 0 of itself when it gives up; so rank 0 misses rank 2.
TEST(GpuAllReduce, reports_who_does_not_come_and_then_does_nothing) {
  MadeUpGpus gpus(3);
  const Reduction reduction({2, 5000, 0}, 3, {0, 1, 2}, {});
  for (const size_t rank : {1U, 0U}) {
    gpus.peers(rank).deadline_ns = 1'000'000;
    Rows output = reduction.output();
    reduction.reduce(gpus.peers(rank), 0, output);
  }
  EXPECT_TRUE(missing_rank(gpus.failure(1)).has_value());
  EXPECT_EQ(missing_rank(gpus.failure(0)), 2U);
  // Nobody waits again: this would take an hour.
  gpus.peers(0).deadline_ns = uint64_t{3600} * 1'000'000'000;
  Rows output = reduction.output();
  reduction.reduce(gpus.peers(0), 1, output);
  gpu_meet(nullptr, gpus.peers(0));
  EXPECT_TRUE(same_bits(output.values(), reduction.expected(0)));
}

// Rank 1 has sent its shares, but does not come to the second barrier.
TEST(GpuAllReduce, reports_who_does_not_come_again) {
  MadeUpGpus gpus(2);
  gpus.peers(0).deadline_ns = 1'000'000;
  for (GpuMailbox::Channel& channel : gpus.mailbox(0).channels) channel.arrived[1] = 1;
  const Reduction reduction({1, 16, 0}, 2, {0, 1}, {.two_shots = true});
  Rows output = reduction.output();
  reduction.reduce(gpus.peers(0), 0, output);
  EXPECT_EQ(gpus.mailbox(1).channels[0].arrived[0], 2U);
  EXPECT_EQ(missing_rank(gpus.failure(0)), 1U);
}

TEST(GpuAllReduce, two_shots_send_fewer_bytes_between_more_than_two_ranks) {
  const auto sent = [](size_t ranks, const Sending& sending) {
    return gpu_sum_sent_bytes({.row_count = 3,
                               .column_count = 1000,
                               .contributors = {},
                               .bf16 = sending.bf16,
                               .two_shots = sending.two_shots},
                              ranks);
  };
  EXPECT_EQ(sent(4, {false, false}), 3 * 3000 * 4U);
  EXPECT_EQ(sent(4, {false, true}), 3 * 3000 * 8 / 4U);
  EXPECT_EQ(sent(4, {true, false}), 3 * 3000 * 2U);
  EXPECT_EQ(sent(4, {true, true}), 3 * 3000 * 6 / 4U);
  EXPECT_EQ(sent(2, {false, true}), sent(2, {false, false}));
}

TEST(GpuMeet, nobody_goes_on_before_all_have_come) {
  for (const size_t ranks : {1U, 2U, 5U}) {
    MadeUpGpus gpus(ranks);
    // Plain memory: what was written before is seen after.
    std::vector<uint32_t> done(ranks * 32, 0);
    std::vector<size_t> behind(ranks * 32, 0);
    gpus.run([&](size_t rank) {
      for (uint32_t round = 1; round <= 20; ++round) {
        done[rank * 32] = round;
        gpu_meet(nullptr, gpus.peers(rank));
        for (size_t other = 0; other < ranks; ++other) {
          behind[rank * 32] += done[other * 32] != round ? 1 : 0;
        }
        gpu_meet(nullptr, gpus.peers(rank));
      }
    });
    for (size_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(behind[rank * 32], 0U);
  }
}

TEST(GpuMeet, reports_who_does_not_come) {
  MadeUpGpus gpus(2);
  gpus.peers(1).deadline_ns = 4'000'000;
  uint32_t waiting = 0;
  gpus.peers(1).waiting = &waiting;
  gpu_meet(nullptr, gpus.peers(1));
  EXPECT_EQ(missing_rank(gpus.failure(1)), 0U);
  EXPECT_EQ(awaited_rank(waiting), 0U);
  EXPECT_GT(waiting, kGpuWaitingTick);  // a number that changes
  EXPECT_EQ(missing_rank(gpus.failure(0)), std::nullopt);
}

TEST(GpuSumLaunch, has_no_more_blocks_than_channels_and_covers_everything) {
  MadeUpGpus gpus(2, 8);
  const std::vector<size_t> contributors = {0, 1};
  alignas(16) float memory[4] = {};
  for (const size_t columns : {1U, 4U, 1000U, 1024U, 1025U, 8192U, 8193U, 100003U}) {
    for (const size_t rows : {1U, 3U, 64U}) {
      for (const bool two_shots : {false, true}) {
        const GpuSumLaunch launch = gpu_sum_launch({.partial = memory,
                                                    .output = memory,
                                                    .row_count = rows,
                                                    .column_count = columns,
                                                    .contributors = contributors,
                                                    .two_shots = two_shots},
                                                   gpus.peers(0));
        EXPECT_LE(launch.block_count, 8U);
        EXPECT_LE(launch.piece_units * 16, kGpuSlotBytes * (two_shots ? 2 : 1));
        // Whole chunks of 32 columns, for norms.
        EXPECT_EQ(launch.unit_count, rows * 8 * ((columns + 31) / 32));
        EXPECT_EQ(launch.piece_units % kGpuChunkUnits, 0U);
        // Every block has something, so that all blocks of all ranks meet equally often.
        EXPECT_LT((launch.block_count - 1) * launch.piece_units, launch.unit_count);
      }
    }
  }
}

TEST(GpuSumLaunchDeathTest, refuses_more_blocks_than_are_resident) {
  MadeUpGpus gpus(1);
  gpus.peers(0).channel_count = kGpuChannelsMax + 1;
  EXPECT_DEATH(check_gpu_peers(gpus.peers(0)), "33 channels");
}

}  // namespace
}  // namespace lockstep
