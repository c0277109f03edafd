// Sums between GPUs are timed at the load, and ranks choose their way by those times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "engine/runtime/gpu/gpu_trials.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Sums that take a nanosecond per float in one shot and half of it in two.
void pretend_to_sum(void* stream, const GpuAllReduce& sum, const GpuPeers& peers) {
  ++*static_cast<size_t*>(stream);
  *peers.spent_ns += sum.two_shots ? sum.column_count / 2 : sum.column_count;
}

// `sums`: how many there were.
Result<std::vector<GpuSumRounds>> time_pretended_sums(size_t bytes_max, size_t& sums,
                                                      const std::function<Result<void>()>& wait) {
  const GpuCollectives collectives = {&pretend_to_sum, nullptr, nullptr};
  uint64_t spent = 1'000'000;
  const GpuPeers peers = {.rank_count = 3, .spent_ns = &spent};
  return time_gpu_sums({.collectives = collectives,
                        .peers = peers,
                        .stream = &sums,
                        .bytes_max = bytes_max,
                        .wait = wait});
}

TEST(GpuSumTrial, times_sums_of_every_size_in_both_ways) {
  size_t sums = 0;
  size_t waits = 0;
  const auto rounds = time_pretended_sums(3 << 20, sums, [&]() -> Result<void> {
    ++waits;
    return {};
  });
  ASSERT_TRUE(rounds.has_value());
  ASSERT_EQ(rounds->size(), 10U);  // of 4 KiB to 2 MiB
  for (size_t size = 0; size < 10; ++size) {
    const size_t bytes = kGpuSumTrialBytesMin << size;
    EXPECT_EQ((*rounds)[size].bytes, bytes);
    EXPECT_THAT((*rounds)[size].one_shot_ns, Each(bytes / 4));
    EXPECT_THAT((*rounds)[size].two_shots_ns, Each(bytes / 8));
  }
  EXPECT_EQ(waits, 10 * 2 * (kGpuSumTrialRounds + 1));
  EXPECT_GE(sums, 4 * waits);
}

TEST(GpuSumTrial, fails_as_the_stream_does) {
  size_t sums = 0;
  int waits = 0;
  const auto rounds = time_pretended_sums(64 << 10, sums, [&]() -> Result<void> {
    if (++waits < 3) return {};
    return machine_refused("gpu7 is lost");
  });
  ASSERT_FALSE(rounds.has_value());
  EXPECT_EQ(rounds.error().message, "gpu7 is lost");
  EXPECT_EQ(waits, 3);
}

// One round of five in which somebody was late is not seen, nor is who is always early.
TEST(GpuSumTrial, takes_the_slowest_rank_and_the_median_round) {
  const std::vector<std::vector<GpuSumRounds>> ranks = {
      {{.bytes = 1024, .one_shot_ns = {5, 5, 900, 5, 5}, .two_shots_ns = {7, 9, 6, 5, 8}}},
      {{.bytes = 1024, .one_shot_ns = {4, 4, 4, 4, 8}, .two_shots_ns = {1, 1, 1, 1, 1}}},
      {{.bytes = 1024, .one_shot_ns = {6, 4, 4, 7, 4}, .two_shots_ns = {1, 1, 1, 1, 40}}}};
  const std::vector<GpuSumTime> times = slowest_medians(ranks);
  ASSERT_EQ(times.size(), 1U);
  EXPECT_EQ(times[0].bytes, 1024U);
  EXPECT_EQ(times[0].one_shot_ns, 7U);   // of 6, 5, 900, 7, 8
  EXPECT_EQ(times[0].two_shots_ns, 7U);  // of 7, 9, 6, 5, 40
}

TEST(GpuSumTrial, says_its_figures) {
  const std::vector<GpuSumTime> times = {{32 << 10, 7'140, 9'900}, {64 << 10, 8'000, 10'050}};
  EXPECT_EQ(sum_times_text(times), "32 KiB 7.1/9.9 us, 64 KiB 8.0/10.1 us");
}

// Ranks ask with every sum: these are the limits that they were told, and the sums' bytes.
std::mutex told_mutex;
std::set<std::optional<size_t>> told;
std::set<size_t> asked_bytes;
GpuSumWay remember_what_was_told(const GpuSumQuestion& question) {
  const std::lock_guard lock(told_mutex);
  told.insert(question.one_shot_bytes_max);
  asked_bytes.insert(question.bytes);
  return gpu_sum_way(question);
}

class GpuSumTrialOfRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string absence = no_test_gpus(); !absence.empty()) GTEST_SKIP() << absence;
    told.clear();
  }

  LogitRows compute(size_t timed_sum_bytes_max, size_t ranks) {
    GpuPlatform platform = test_gpus();
    platform.timed_sum_bytes_max = timed_sum_bytes_max;
    platform.sum_way = &remember_what_was_told;
    LoadedModel loaded(model_.path(), {.shares = std::vector<double>(ranks, 1),
                                       .strategy = Strategy::kReduce,
                                       .kv_format = KvFormat::kF16,
                                       .gpus = &platform});
    return loaded.compute_alone(some_tokens(5, 1), 5);
  }

  const RandomModel model_{Format::kQ8_0, Format::kQ8_0, /*seed=*/61};
};

// How long sums take on the host means nothing; that they are timed changes no bit.
TEST_F(GpuSumTrialOfRanks, all_are_told_the_same_and_have_the_same_bits) {
  const LogitRows wanted = compute(0, 3);
  EXPECT_THAT(told, ElementsAre(std::nullopt));
  told.clear();
  expect_same_bits(wanted, compute(kGpuSumTrialBytesMin, 3));
  ASSERT_EQ(told.size(), 1U);
  const std::optional<size_t> one_shot_max = *told.begin();
  EXPECT_THAT(one_shot_max, ::testing::AnyOf(0U, kGpuSumTrialBytesMin));
}

// Not by those of the largest pass that is launched alike.
TEST_F(GpuSumTrialOfRanks, few_tokens_are_sent_by_at_most_twice_their_bytes) {
  GpuPlatform platform = test_gpus();
  platform.sum_way = &remember_what_was_told;
  LoadedModel loaded(model_.path(), {.shares = {1, 1, 1},
                                     .strategy = Strategy::kReduce,
                                     .kv_format = KvFormat::kF16,
                                     .gpus = &platform});
  const size_t row_bytes = loaded.plan().hidden.width * sizeof(float);
  for (const bool generated : {false, true}) {
    loaded.set_generated(generated);
    for (const auto& [tokens, rows] : {std::pair{1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}}) {
      asked_bytes.clear();
      const auto count = static_cast<size_t>(tokens);
      loaded.compute_alone(some_tokens(count, 1), count);
      asked_bytes.erase(0);  // of rows that travel as bf16 there are none
      EXPECT_THAT(asked_bytes, Each(static_cast<size_t>(rows) * row_bytes));
    }
  }
}

// Sums of two ranks take one shot.
TEST_F(GpuSumTrialOfRanks, of_two_nothing_is_timed) {
  compute(kGpuSumTrialBytesMin, 2);
  EXPECT_THAT(told, ElementsAre(std::nullopt));
}

}  // namespace
}  // namespace lockstep
