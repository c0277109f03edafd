#include "engine/placement/rank_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/gguf_file.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/placement/machine_of.h"
#include "tests/engine/placement/place_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Two ranks that read 50 ms of weights each, one rank that reads 100 ms.
NodeSpeed speed_with_exchanges(double seconds) {
  return {.bytes_per_second = {1e9, 1e9},
          .read_seconds = 0.05,
          .exchanges_per_token = 100,
          .seconds_per_exchange = seconds / 100,
          .one_rank_tokens_per_second = 10};
}

TEST(RankChoice, one_rank_is_preferred_where_exchanges_cost_more_than_they_bring) {
  EXPECT_FALSE(prefers_one_rank(speed_with_exchanges(0.01)));
  EXPECT_FALSE(prefers_one_rank(speed_with_exchanges(0.05)));
  // Slower, but by no more than measurements differ.
  EXPECT_FALSE(prefers_one_rank(speed_with_exchanges(0.055)));
  EXPECT_TRUE(prefers_one_rank(speed_with_exchanges(0.07)));
  NodeSpeed does_not_fit = speed_with_exchanges(1);
  does_not_fit.one_rank_tokens_per_second = 0;
  EXPECT_FALSE(prefers_one_rank(does_not_fit));
}

TEST(RankChoice, the_comparison_says_which_is_faster_and_by_what) {
  EXPECT_THAT(compare_with_one_rank(speed_with_exchanges(0), 2),
              HasSubstr("2 ranks are 2.00 times as fast as one"));
  const std::string slower = compare_with_one_rank(speed_with_exchanges(0.1), 2);
  EXPECT_THAT(slower, HasSubstr("one rank is 1.50 times as fast as 2"));
  EXPECT_THAT(slower, HasSubstr("100 exchanges take 100.00 ms"));
}

// A second node with the second processor, which this machine does not have.
Topology two_nodes() {
  Topology topology = read_topology();
  Node second = topology.nodes.front();
  second.id = 1023;
  topology.nodes.resize(1);
  topology.nodes.push_back(second);
  topology.nodes[0].distances = {10, 21};
  topology.nodes[1].distances = {21, 10};
  for (size_t index = 0; index < topology.cpus.size(); ++index) {
    topology.cpus[index].node = index == 0 ? topology.nodes.front().id : second.id;
  }
  return topology;
}

class RankChoiceOnTwoNodes : public ::testing::Test {
 protected:
  Result<ModelLayout> lay_out(const Settings& settings) {
    return Placer(model_, settings, machine_).place();
  }

  static Settings short_context(const Machine& machine) {
    EngineOptions options;
    options.context_tokens = 64;
    return parse(options, machine, "").value();
  }

  GgufFile file_ =
      GgufFile::open(source_dir() + "/tests/fixtures/logits/llama-gqa-f16.gguf").value();
  Model model_ = build_model({.file = file_}).value();
  Machine machine_ = machine_of(two_nodes());
  Settings settings_ = short_context(machine_);
};

TEST_F(RankChoiceOnTwoNodes, a_number_that_was_asked_for_stays) {
  if (machine_.topology.cpus.size() < 2) GTEST_SKIP() << "one processor makes no two nodes";
  const auto automatic = lay_out(settings_);
  ASSERT_TRUE(automatic.has_value()) << automatic.error().message;
  ASSERT_EQ(automatic->places.size(), 2U);
  EXPECT_TRUE(may_choose_ranks(settings_, *automatic));
  for (const auto& change :
       std::vector<void (*)(Settings&)>{[](Settings& settings) { settings.rank_count = 2; },
                                        [](Settings& settings) { settings.worker_count = 1; },
                                        [](Settings& settings) { settings.measure_shares = true; },
                                        [](Settings& settings) {
                                          settings.shares = {1, 2};
                                        }}) {
    Settings asked = settings_;
    change(asked);
    EXPECT_FALSE(may_choose_ranks(asked, *automatic));
  }
  EXPECT_FALSE(may_choose_ranks(settings_, *lay_out(with_one_rank(settings_))));
}

// Memory cannot be had on a node that is not there: the layout stays, and says why.
TEST_F(RankChoiceOnTwoNodes, what_cannot_be_measured_stays_as_it_is) {
  if (machine_.topology.cpus.size() < 2) GTEST_SKIP() << "one processor makes no two nodes";
  auto layout = lay_out(settings_);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  const auto choice = choose_ranks(model_, settings_, machine_, std::move(*layout));
  ASSERT_TRUE(choice.has_value()) << choice.error().message;
  EXPECT_EQ(choice->layout.places.size(), 2U);
  EXPECT_EQ(choice->settings.rank_count, 0U);
  EXPECT_THAT(choice->reason, HasSubstr("could not be measured"));
}

// Nothing is measured then, which would fail here.
TEST_F(RankChoiceOnTwoNodes, kept_weights_decide) {
  if (machine_.topology.cpus.size() < 2) GTEST_SKIP() << "one processor makes no two nodes";
  for (const size_t kept : {1u, 2u}) {
    auto layout = lay_out(settings_);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    const auto choice = choose_ranks(model_, settings_, machine_, std::move(*layout), kept);
    ASSERT_TRUE(choice.has_value()) << choice.error().message;
    EXPECT_EQ(choice->layout.places.size(), kept);
    EXPECT_EQ(choice->settings.rank_count, kept == 1 ? 1U : 0U);
  }
}

// They were given up for a reason that one rank does not change.
TEST_F(RankChoiceOnTwoNodes, one_rank_keeps_the_reason_for_which_there_is_no_gpu) {
  if (machine_.topology.cpus.size() < 2) GTEST_SKIP() << "one processor makes no two nodes";
  Gpu& gpu = machine_.topology.gpus.emplace_back(simulated_gpu(0, -1));
  gpu.links = {GpuLink::kSelf};
  gpu.free_bytes = 0;
  auto layout = lay_out(settings_);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  const std::string reason = layout->devices.reason;
  EXPECT_THAT(reason, HasSubstr("the model does not fit on all GPUs"));
  const auto choice = choose_ranks(model_, settings_, machine_, std::move(*layout), 1);
  ASSERT_TRUE(choice.has_value()) << choice.error().message;
  EXPECT_EQ(choice->layout.places.size(), 1U);
  EXPECT_EQ(choice->layout.devices.reason, reason);
}

}  // namespace
}  // namespace lockstep
