// Through what ranks on GPUs exchange, and what becomes of a pass in which one does not come: on
// simulated GPUs with a fake NCCL.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/engine/collectives/cuda/host_collectives.h"
#include "tests/engine/collectives/cuda/host_nccl.h"
#include "tests/engine/kernels/cuda/host_kernels.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class GpuLinksTest : public ::testing::Test {
 protected:
  GpuLinksTest() { reset(); }
  ~GpuLinksTest() override { reset(); }

  static void reset() {
    host_nccl().reset();
    for (int gpu = 0; gpu < 3; ++gpu) host_gpu(gpu).reset();
  }

  LoadedModelOptions options(const GpuPlatform& platform, size_t ranks = 2) const {
    return {.shares = std::vector<double>(ranks, 1),
            .strategy = Strategy::kReduce,
            .kv_format = KvFormat::kF16,
            .gpus = &platform};
  }

  std::string failure_of(LoadedModel& loaded) const {
    try {
      loaded.compute_alone(tokens_, 4);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  std::string refusal_of(const LoadedModelOptions& options) const {
    try {
      const LoadedModel loaded(model_.path(), options);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  const RandomModel model_{Format::kQ8_0, Format::kQ8_0, /*seed=*/35};
  const std::vector<TokenId> tokens_ = some_tokens(4, 1);
};

// Those of up to eight rows of the model's 256 columns over peer memory, those of more by NCCL.
GpuSumWay large_ones_by_nccl(const GpuSumQuestion& question) {
  const bool large = question.bytes > size_t{8} * 256 * sizeof(float);
  return large && question.nccl ? GpuSumWay::kNccl : GpuSumWay::kPeerMemory;
}

TEST_F(GpuLinksTest, all_tokens_are_summed_however_few_logits_are_wanted) {
  GpuPlatform in_two = test_gpus();
  in_two.sum_way = [](const GpuSumQuestion&) { return GpuSumWay::kPeerMemoryInTwoShots; };
  const auto tokens = some_tokens(9, 1);
  for (const GpuPlatform& platform : {test_gpus(), in_two, test_gpus_by_nccl()}) {
    LoadedModel loaded(model_.path(), options(platform));
    for (const bool generated : {false, true}) {
      loaded.set_generated(generated);
      expect_same_bits({loaded.compute_last(tokens)}, {loaded.compute_alone(tokens, 9).back()});
    }
  }
}

TEST_F(GpuLinksTest, which_way_a_sum_takes_is_not_seen_in_the_bits) {
  GpuPlatform both = test_gpus();
  both.join = &join_host_gpus;
  both.sum_way = &large_ones_by_nccl;
  const auto tokens = some_tokens(9, 1);
  LoadedModelOptions wanted = options(test_gpus(), 3);
  wanted.generated = true;
  const LogitRows rows = LoadedModel(model_.path(), wanted).compute_alone(tokens, 9);
  LoadedModelOptions mixed = options(both, 3);
  mixed.generated = true;
  LoadedModel loaded(model_.path(), mixed);
  EXPECT_TRUE(loaded.ranks().shares_gpu_memory());
  const size_t before = host_nccl().counts().exchanges;
  expect_same_bits(rows, loaded.compute_alone(tokens, 5));
  EXPECT_EQ(host_nccl().counts().exchanges, before);
  expect_same_bits(rows, loaded.compute_alone(tokens, 9));
  EXPECT_GT(host_nccl().counts().exchanges, before);
  // Only passes without sums by NCCL are recorded, such as one of a single token.
  expect_same_bits(rows, loaded.compute_alone(tokens, 1));
  EXPECT_GT(host_gpu(0).counts().graph_launches, 0U);
}

// Some rows of a pass's sums go by NCCL and others, as f32, do not. The norms of all rows are then
// launched behind both.
TEST_F(GpuLinksTest, norms_of_a_sum_that_goes_both_ways_have_the_same_bits) {
  GpuPlatform both = test_gpus();
  both.join = &join_host_gpus;
  both.sum_way = &large_ones_by_nccl;
  const auto prompt = some_tokens(11, 1);
  const std::vector<TokenId> next = {17};
  const auto rows_of = [&](const GpuPlatform& platform) {
    LoadedModelOptions wanted = options(platform, 3);
    wanted.bf16_sums = true;
    LoadedModel loaded(model_.path(), wanted);
    LoadedModel::Sequence a = loaded.new_sequence(3);
    LoadedModel::Sequence b = loaded.new_sequence(prompt.size());
    const std::vector<LoadedModel::Piece> first = {{a, std::span(prompt).first(2)}};
    loaded.compute(first);
    const std::vector<LoadedModel::Piece> pieces = {{a, next}, {b, prompt}};
    return loaded.compute(pieces, 1);
  };
  const LogitRows wanted = rows_of(test_gpus());
  const size_t before = host_nccl().counts().exchanges;
  expect_same_bits(wanted, rows_of(both));
  EXPECT_GT(host_nccl().counts().exchanges, before);
}

std::atomic<size_t> norm_launches;
void norm_rows_and_count(void* stream, const GpuNormRows& norm) {
  ++norm_launches;
  host_kernels().norm_rows(stream, norm);
}

TEST_F(GpuLinksTest, a_norm_behind_a_sum_over_peer_memory_is_no_launch) {
  GpuKernels kernels = *test_gpus().kernels;
  kernels.norm_rows = &norm_rows_and_count;
  for (GpuPlatform platform : {test_gpus(), test_gpus_by_nccl()}) {
    platform.kernels = &kernels;
    LoadedModel loaded(model_.path(), options(platform));
    size_t sums = 0;
    for (const Step& step : loaded.plan().steps) {
      if (std::holds_alternative<AllReduceStep>(step.work)) ++sums;
    }
    norm_launches = 0;
    EXPECT_EQ(failure_of(loaded), "");
    // The first layer's norm reads what was embedded; each other one, on both GPUs, a sum.
    EXPECT_EQ(norm_launches, 2 * (1 + (platform.peer_access ? 0 : sums)));
  }
}

// The bits do not show which way a sum took; the counters do.
TEST_F(GpuLinksTest, what_ranks_send_is_counted_and_how_long_they_take) {
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  GpuPlatform in_two = test_gpus();
  in_two.sum_way = [](const GpuSumQuestion&) { return GpuSumWay::kPeerMemoryInTwoShots; };
  struct Case {
    const GpuPlatform& platform;
    bool bf16_sums;
    size_t rows;        // three tokens are four rows of f32 by NCCL
    size_t bytes_each;  // of what is summed
  };
  // By NCCL all travels as f32, in two shots the second time.
  for (const Case& each : {Case{test_gpus(), false, 3, 4},
                           {test_gpus(), true, 3, 2},
                           {in_two, true, 3, 3},
                           {by_nccl, false, 4, 4},
                           {by_nccl, true, 3, 4}}) {
    const GpuPlatform* const platform = &each.platform;
    SCOPED_TRACE(::testing::Message() << platform->peer_access << each.bf16_sums);
    LoadedModelOptions wanted = options(*platform);
    wanted.bf16_sums = each.bf16_sums;
    LoadedModel loaded(model_.path(), wanted);
    const Plan& plan = loaded.plan();
    size_t sums = 0;
    for (const Step& step : plan.steps) {
      if (std::holds_alternative<AllReduceStep>(step.work)) ++sums;
    }
    // Between two ranks each sends a message as large as the sum.
    const size_t row_bytes = plan.hidden.width * sizeof(float);
    const size_t sum_bytes = sums * each.rows * plan.hidden.width * each.bytes_each;
    loaded.compute_alone(std::span(tokens_).first(3), 3);
    size_t embedding_bytes = 0;
    for (size_t rank = 0; rank < 2; ++rank) {
      const WorkerCounters& counters = loaded.ranks()[rank].counters(0);
      embedding_bytes += counters.exchange_bytes.value() - sum_bytes;
      EXPECT_GT(counters.exchange_ns.value(), 0U);
    }
    // A token's row is sent by who has it, or joined as a sum is.
    EXPECT_EQ(embedding_bytes, platform->peer_access ? 3 * row_bytes : 2 * 4 * row_bytes);
  }
}

TEST_F(GpuLinksTest, nccl_is_not_asked_where_no_sum_is_large) {
  GpuPlatform both = test_gpus();
  both.join = &join_host_gpus;
  LoadedModel loaded(model_.path(), options(both));
  EXPECT_EQ(host_nccl().counts().joined, 0U);
}

TEST_F(GpuLinksTest, gpus_apart_are_joined_by_nccl_and_refused_without) {
  host_gpu(0).isolate(true);
  EXPECT_THAT(refusal_of(options(test_gpus())), HasSubstr("gpu0 cannot reach the memory of gpu1"));
  GpuPlatform joined = test_gpus();
  joined.join = &join_host_gpus;
  {
    LoadedModel loaded(model_.path(), options(joined));
    EXPECT_EQ(host_nccl().counts().joined, 1U);
    EXPECT_EQ(gpu_executor(loaded.ranks()[0]).recording_count(), 0U);
    EXPECT_FALSE(loaded.ranks().shares_gpu_memory());
    EXPECT_EQ(failure_of(loaded), "");
  }
  host_nccl().refuse(true);
  EXPECT_THAT(refusal_of(options(joined)), HasSubstr("2 GPUs are not joined"));
}

// Links that a GPU reports are tried before anything relies on them; NCCL would rely on them too.
TEST_F(GpuLinksTest, links_that_lose_what_is_written_are_refused_or_left_to_nobody) {
  for (const int writer : {0, 1}) {
    reset();
    host_gpu(writer).lose_writes(true);
    const std::string refusal = refusal_of(options(test_gpus()));
    EXPECT_THAT(refusal, HasSubstr(fmt::format("gpu{} does not reach gpu{}'s memory, although",
                                               writer, 1 - writer)));
    EXPECT_THAT(refusal, HasSubstr("iommu=pt, or use --nccl-peer-access false"));
    GpuPlatform joined = test_gpus();
    joined.join = &join_host_gpus;
    EXPECT_EQ(refusal_of(options(joined)), refusal);
    joined.settings.nccl_peer_access = false;
    LoadedModel loaded(model_.path(), options(joined));
    EXPECT_STREQ(getenv("NCCL_P2P_DISABLE"), "1");
    unsetenv("NCCL_P2P_DISABLE");
    EXPECT_FALSE(loaded.ranks().shares_gpu_memory());
    EXPECT_EQ(failure_of(loaded), "");
  }
}

void lose_gpu1_and_sum(void* stream, const GpuAllReduce& sum, const GpuPeers& peers) {
  if (peers.rank == 1) host_gpu(1).lose();
  host_collectives().all_reduce(stream, sum, peers);
}

TEST_F(GpuLinksTest, a_gpu_that_is_lost_while_sums_are_timed_fails_the_load) {
  GpuCollectives collectives = host_collectives();
  collectives.all_reduce = &lose_gpu1_and_sum;
  GpuPlatform platform = test_gpus();
  platform.collectives = &collectives;
  platform.timed_sum_bytes_max = kGpuSumTrialBytesMin;
  EXPECT_THAT(refusal_of(options(platform, 3)), HasSubstr("gpu1: waiting for it: the GPU is lost"));
}

TEST_F(GpuLinksTest, sums_go_over_peer_memory_where_nccl_refuses) {
  GpuPlatform both = test_gpus();
  both.join = &join_host_gpus;
  both.sum_way = &large_ones_by_nccl;
  host_nccl().refuse(true);
  LoadedModel loaded(model_.path(), options(both));
  EXPECT_EQ(failure_of(loaded), "");
}

// The others are told at once: nobody waits for a deadline.
TEST_F(GpuLinksTest, a_lost_gpu_fails_the_pass_and_frees_the_others) {
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  for (const int lost : {0, 1}) {
    SCOPED_TRACE(lost);
    reset();
    LoadedModel loaded(model_.path(), options(by_nccl));
    host_nccl().silence(99, std::chrono::hours(1));  // none of them, but nobody gives up sooner
    EXPECT_EQ(failure_of(loaded), "");
    host_gpu(lost).lose(2);  // in the midst of the next pass
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_THAT(failure_of(loaded), HasSubstr(fmt::format("gpu{}", lost))) << pass;
    }
    EXPECT_GT(host_nccl().counts().aborts, 0U);
  }
}

TEST_F(GpuLinksTest, a_rank_that_never_comes_fails_the_pass_after_the_deadline) {
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  LoadedModel loaded(model_.path(), options(by_nccl));
  host_nccl().silence(1, std::chrono::milliseconds(20));
  EXPECT_THAT(failure_of(loaded), HasSubstr("rank 0: the others did not come"));
  EXPECT_THAT(failure_of(loaded), HasSubstr("rank 0: the others did not come"));
}

// All of them run out of time, at once or after the others: who has waited for it is not named.
TEST_F(GpuLinksTest, of_gpus_joined_by_nccl_the_one_that_hangs_is_named) {
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  for (const auto& [hanging, patience_ms] : std::map<int, int>{{0, 60}, {1, 0}, {2, 60}}) {
    SCOPED_TRACE(hanging);
    reset();
    LoadedModel loaded(model_.path(), options(by_nccl, 3));
    host_nccl().wait_for_ever(std::chrono::milliseconds(20));
    host_gpu(hanging).hang(std::chrono::milliseconds(patience_ms));
    EXPECT_THAT(failure_of(loaded),
                StartsWith(fmt::format("gpu{}: what it was to do was not done", hanging)));
  }
}

// The host gives up on all of them while those that wait still do so: a hang late in a pass.
TEST_F(GpuLinksTest, of_gpus_over_peer_memory_the_one_that_hangs_is_named) {
  LoadedModel loaded(model_.path(), options(test_gpus(), 3));
  EXPECT_EQ(failure_of(loaded), "");
  for (const int waiting : {0, 2}) host_gpu(waiting).outlast(std::chrono::milliseconds(400));
  host_gpu(1).hang(std::chrono::milliseconds(20));
  EXPECT_THAT(failure_of(loaded), StartsWith("gpu1: what it was to do was not done"));
  EXPECT_TRUE(loaded.ranks()[0].has_waited_in_vain());
  EXPECT_FALSE(loaded.ranks()[1].has_waited_in_vain());
  EXPECT_TRUE(loaded.ranks()[2].has_waited_in_vain());
}

TEST_F(GpuLinksTest, where_no_gpu_hangs_no_one_is_said_to) {
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  LoadedModel loaded(model_.path(), options(by_nccl));
  host_nccl().silence(1, std::chrono::milliseconds(20));
  host_nccl().wait_for_ever(std::chrono::milliseconds(20));
  EXPECT_THAT(failure_of(loaded),
              StartsWith("what the GPUs exchange by NCCL was not done in time"));
}

// As late as streams may run: what one pass sends is not what the next one reads.
TEST_F(GpuLinksTest, streams_that_run_late_change_nothing) {
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  const LogitRows wanted =
      LoadedModel(model_.path(), options(test_gpus())).compute_alone(tokens_, 2);
  LoadedModel loaded(model_.path(), options(by_nccl));
  for (int gpu = 0; gpu < 2; ++gpu) host_gpu(gpu).run_late(true);
  expect_same_bits(wanted, loaded.compute_alone(tokens_, 2));
  LoadedModel linked(model_.path(), options(test_gpus()));
  EXPECT_TRUE(linked.ranks().shares_gpu_memory());
}

}  // namespace
}  // namespace lockstep
