// The choice of devices where none are named, on simulated machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/measure/plan_report.h"
#include "engine/placement/device_comparison.h"
#include "engine/placement/model_layout.h"
#include "tests/engine/placement/devices_case.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AutomaticDevices : public DevicesTest {};

// A default must work: with too many GPUs, or with ranks or shares for fewer.
TEST_F(AutomaticDevices, a_default_that_would_not_work_on_all_gpus_takes_fewer) {
  Topology topology = machine_with_linked_gpus();
  options_.shares = {3, 1};
  const auto shares = split("auto", topology);
  ASSERT_TRUE(shares.has_value()) << shares.error().message;
  EXPECT_THAT(shares->devices.gpus, ElementsAre(0, 1));
  EXPECT_THAT(shares->devices.reason, HasSubstr("2 of 4 GPUs, since shares 3:1 are for 2 ranks"));
  options_.shares.clear();
  options_.rank_count = 3;
  EXPECT_THAT(split("auto", topology)->devices.gpus, ElementsAre(0, 1, 2));
  options_.rank_count = 0;
  options_.strategy = "gather";
  EXPECT_THAT(split("auto", topology)->devices.gpus, ElementsAre(0));
  options_.strategy = "auto";
  for (int index = 4; index < 17; ++index) topology.gpus.push_back(simulated_gpu(index, 0));
  for (Gpu& gpu : topology.gpus) gpu.links.assign(topology.gpus.size(), GpuLink::kNvlink);
  const auto many = split("auto", topology);
  ASSERT_TRUE(many.has_value()) << many.error().message;
  EXPECT_EQ(many->devices.gpus.size(), 16U);
  EXPECT_THAT(many->devices.reason, HasSubstr("16 of 17 GPUs, since 17 GPUs are chosen"));
  expect_refusal("gpu", topology, "at most 16 can be ranks");
}

// Somebody else has taken the memory of one of them.
TEST_F(AutomaticDevices, by_default_a_gpu_without_space_is_left_out) {
  Topology topology = machine_with_linked_gpus();
  topology.gpus[1].free_bytes = 0;
  const auto three = split("auto", topology);
  ASSERT_TRUE(three.has_value()) << three.error().message;
  EXPECT_THAT(three->devices.gpus, ElementsAre(0, 2, 3));
  EXPECT_THAT(three->devices.reason,
              HasSubstr("3 of 4 GPUs, since the model does not fit on all GPUs"));
  for (const size_t full : {0U, 3U}) topology.gpus[full].free_bytes = 0;
  const auto one = split("auto", topology);
  ASSERT_TRUE(one.has_value()) << one.error().message;
  EXPECT_THAT(one->devices.gpus, ElementsAre(2));
  EXPECT_THAT(one->devices.reason, HasSubstr("1 of 4 GPUs, since"));
  EXPECT_THAT(
      idle_sentences(one->devices),
      ElementsAre("gpu0, gpu1, gpu3 stay idle: 0.0 GiB of memory are free, and 2.6 are kept "
                  "for the driver; end what takes the rest"));
  const auto plan = plan_machine(options_, this_machine_with(topology.gpus), /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->devices.names, "gpu2");
  EXPECT_EQ(plan->devices.idle, idle_sentences(one->devices));
  EXPECT_THAT(plan->devices.reason, HasSubstr("1 of 4 GPUs, since"));
}

// A machine with one GPU, and a model of which a quarter has no space on it.
class GpuTooSmall : public AutomaticDevices {
 protected:
  GpuTooSmall() {
    options_.context_tokens = 256;
    options_.sequence_count = 1;
    options_.batch_tokens = 32;
  }

  void SetUp() override {
    const auto whole = split("gpu3", topology_);
    ASSERT_TRUE(whole.has_value() && sized_.has_value());
    const RankSizes& sizes = whole->sizes[0];
    leave(gpu_, sizes.gpu_bytes() - sizes.weight_bytes / 4);
    gpu_.bytes_per_second = 2e9;  // as fast as both nodes
    node_speed_ = 1e9;
  }

  std::vector<int> gpus_chosen() {
    const auto layout = split("auto", topology_);
    EXPECT_TRUE(layout.has_value()) << layout.error().message;
    if (!layout) return {};
    EXPECT_TRUE(sized_.has_value()) << sized_.error().message;
    reason_ = layout->devices.reason;
    const auto sentences = idle_sentences(layout->devices);
    idle_ = sentences.empty() ? "" : sentences.front();
    EXPECT_LE(sentences.size(), 1U);
    return layout->devices.gpus;
  }

  Topology topology_ = machine_with_one_gpu();
  Gpu& gpu_ = topology_.gpus[0];
  std::string reason_;
  std::string idle_;  // a sentence
};

TEST_F(GpuTooSmall, computes_beside_the_nodes_and_the_reason_has_both_speeds) {
  EXPECT_THAT(gpus_chosen(), ElementsAre(3));
  EXPECT_THAT(reason_, HasSubstr("GPUs beside nodes, since the model does not fit on all GPUs"));
  EXPECT_THAT(reason_, HasSubstr("; gpu3, node0, node1 generate at most "));
  EXPECT_THAT(reason_, HasSubstr("), node0, node1 "));
  EXPECT_EQ(idle_, "");
}

// Exchanges with a GPU cost a layer more than so small a model takes to read.
TEST_F(GpuTooSmall, stays_idle_beside_faster_nodes_and_is_told_how_to_be_used) {
  gpu_.bytes_per_second = 1e9;
  node_speed_ = 1e12;
  EXPECT_THAT(gpus_chosen(), ::testing::IsEmpty());
  EXPECT_THAT(reason_, HasSubstr("; nodes alone are faster: node0, node1 generate at most "));
  EXPECT_THAT(reason_, HasSubstr("no GPU, since the model does not fit on all GPUs"));
  EXPECT_THAT(idle_, HasSubstr("gpu3 stays idle: node0, node1 generate at most "));
  EXPECT_THAT(idle_, HasSubstr("; give --devices all to use it"));
  // The options that are named do so.
  const auto asked = split("all", topology_);
  ASSERT_TRUE(asked.has_value()) << asked.error().message;
  EXPECT_TRUE(sized_.has_value()) << sized_.error().message;
  EXPECT_THAT(asked->devices.gpus, ElementsAre(3));
  EXPECT_TRUE(idle_sentences(asked->devices).empty());
}

TEST_F(GpuTooSmall, stays_idle_where_the_ranks_that_are_asked_for_are_the_nodes) {
  options_.rank_count = 2;
  EXPECT_THAT(gpus_chosen(), ::testing::IsEmpty());
  EXPECT_THAT(idle_, HasSubstr("gpu3 stays idle: the model does not fit on all GPUs"));
  EXPECT_THAT(idle_, HasSubstr("nor beside nodes, since the ranks or shares that are asked for"));
}

TEST_F(GpuTooSmall, stays_idle_if_its_speed_is_unknown) {
  gpu_.bytes_per_second = 0;
  EXPECT_THAT(gpus_chosen(), ::testing::IsEmpty());
  EXPECT_THAT(reason_, HasSubstr("the model does not fit on all GPUs"));
  EXPECT_THAT(reason_, HasSubstr("nor beside nodes, since gpu3 does not say"));
  EXPECT_THAT(idle_, HasSubstr("gpu3 stays idle: the model does not fit on all GPUs"));
  EXPECT_THAT(idle_, HasSubstr("give the ranks' shares, like --shares 1:1:1"));
}

// Beside others that have space, one that has none for a rank is left out, and it is said.
TEST_F(GpuTooSmall, is_left_out_beside_the_nodes_where_another_one_is_not) {
  topology_ = machine_with_linked_gpus();
  topology_.gpus.resize(2);
  for (Gpu& gpu : topology_.gpus) gpu.links.resize(2);
  topology_.gpus[1].memory_bytes = topology_.gpus[1].free_bytes = 4 * kGiB;
  leave(topology_.gpus[1], 1);
  const auto whole = split("gpu0", topology_);
  ASSERT_TRUE(whole.has_value() && sized_.has_value());
  leave(topology_.gpus[0], whole->sizes[0].gpu_bytes() - whole->sizes[0].weight_bytes / 4);
  for (Gpu& gpu : topology_.gpus) gpu.bytes_per_second = 2e10;
  EXPECT_THAT(gpus_chosen(), ElementsAre(0));
  EXPECT_THAT(reason_, HasSubstr("gpu0, node0, node1 generate at most "));
  EXPECT_THAT(idle_, HasSubstr("gpu1 stays idle: rank 1 needs "));
  EXPECT_THAT(idle_, HasSubstr("on gpu1, where ranks share 0 MiB"));
  // That stays its reason where nodes alone are faster.
  for (Gpu& gpu : topology_.gpus) gpu.bytes_per_second = 1e9;
  node_speed_ = 1e12;
  const auto alone = split("auto", topology_);
  ASSERT_TRUE(alone.has_value()) << alone.error().message;
  const auto sentences = idle_sentences(alone->devices);
  ASSERT_EQ(sentences.size(), 2U) << alone->devices.reason;
  EXPECT_EQ(sentences[0], idle_);
  EXPECT_THAT(sentences[1], HasSubstr("give --devices gpu0,node0,node1 to use it"));
}

// An even share has no space on the smaller one, which is of the same kind.
TEST_F(AutomaticDevices, gpus_of_unequal_free_memory_share_by_the_space_that_they_have) {
  Topology topology = machine_with_linked_gpus();
  topology.gpus.resize(2);
  for (Gpu& gpu : topology.gpus) gpu.links.resize(2);
  options_.context_tokens = 256;
  options_.sequence_count = 1;
  options_.batch_tokens = 32;
  const auto whole = split("gpu0", topology);
  ASSERT_TRUE(whole.has_value() && sized_.has_value());
  const auto even = split("gpu", topology);
  ASSERT_TRUE(even.has_value() && sized_.has_value());
  leave(topology.gpus[0], whole->sizes[0].gpu_bytes() - kPageTokens);
  leave(topology.gpus[1], even->sizes[1].gpu_bytes() - even->sizes[1].weight_bytes / 4);
  const auto layout = split("auto", topology);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  ASSERT_THAT(layout->devices.gpus, ElementsAre(0, 1)) << layout->devices.reason;
  EXPECT_GT(layout->places[0].share, layout->places[1].share);
  EXPECT_TRUE(layout->devices.idle.empty());
  // They are told what fits where they are named.
  ASSERT_TRUE(split("gpu", topology).has_value());
  EXPECT_FALSE(sized_.has_value());
}

TEST_F(AutomaticDevices, gpus_that_fewer_are_taken_of_are_told_why_they_stay_idle) {
  const auto apart = split("auto", machine_with_gpus());
  ASSERT_TRUE(apart.has_value()) << apart.error().message;
  const auto sentences = idle_sentences(apart->devices);
  ASSERT_EQ(sentences.size(), 1U);
  EXPECT_THAT(sentences[0],
              HasSubstr("gpu2, gpu3 stay idle: gpu0 does not reach the memory of gpu2"));
  const auto all = split("auto", machine_with_linked_gpus());
  ASSERT_TRUE(all.has_value()) << all.error().message;
  EXPECT_TRUE(all->devices.idle.empty());
  const auto named = split("cpu", machine_with_gpus());
  ASSERT_TRUE(named.has_value()) << named.error().message;
  EXPECT_TRUE(named->devices.idle.empty());
}

// The model would leave a GPU for its draft's sake, and lose more than drafts give.
class GpuTooSmallForDrafts : public AutomaticDevices {
 protected:
  GpuTooSmallForDrafts() {
    options_.context_tokens = 256;
    options_.sequence_count = 1;
    options_.batch_tokens = 32;
    options_.draft_model = options_.model;
  }

  // The bytes of the GPU's memory that both take.
  uint64_t taken_by_both() {
    const auto both = split("gpu3", topology_);
    EXPECT_TRUE(both.has_value() && sized_.has_value() && both->draft.has_value());
    if (!both || !both->draft) return 0;
    return both->sizes[0].gpu_bytes() + both->draft->sizes[0].gpu_bytes();
  }

  Topology topology_ = machine_with_one_gpu();
  Gpu& gpu_ = topology_.gpus[0];
};

TEST_F(GpuTooSmallForDrafts, both_compute_on_a_gpu_that_has_space_for_both) {
  leave(gpu_, taken_by_both());
  const auto layout = split("auto", topology_);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_THAT(layout->devices.gpus, ElementsAre(3));
  EXPECT_TRUE(layout->devices.nodes.empty());
  EXPECT_TRUE(sized_.has_value()) << sized_.error().message;
  ASSERT_TRUE(layout->draft.has_value());
  EXPECT_EQ(first_misfit(*layout, machine_of(topology_, platform_)), std::nullopt);
}

TEST_F(GpuTooSmallForDrafts, is_told_to_do_without_where_one_byte_lacks) {
  leave(gpu_, taken_by_both() - 1);
  for (const char* const devices : {"auto", "gpu3"}) {
    SCOPED_TRACE(devices);
    const auto layout = split(devices, topology_);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    EXPECT_THAT(layout->devices.gpus, ElementsAre(3));
    EXPECT_TRUE(layout->devices.nodes.empty());
    ASSERT_FALSE(sized_.has_value());
    EXPECT_THAT(sized_.error().message, HasSubstr("MiB for the draft model and its cache"));
    const auto plan = plan_machine(options_, this_machine_with(topology_.gpus), /*measure=*/false);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_THAT(plan->misfit, HasSubstr("--speculate ngram"));
    EngineOptions without = options_;
    without.speculate = "ngram";
    EXPECT_TRUE(plan_machine(without, this_machine_with(topology_.gpus), false)->fits);
  }
}

// GPUs hand out no rows that layers keep.
TEST_F(GpuTooSmallForDrafts, a_draft_that_gpus_cannot_compute_takes_no_model_from_them) {
  options_.draft_model = source_dir() + "/tests/fixtures/eagle/llama-words-eagle.gguf";
  options_.model = source_dir() + "/tests/fixtures/eagle/llama.gguf";
  for (const char* const devices : {"auto", "gpu3"}) {
    const auto layout = split(devices, topology_);
    ASSERT_FALSE(layout.has_value());
    EXPECT_THAT(layout.error().message,
                HasSubstr("reads what layers of the model keep, which GPUs do not hand out"));
  }
  EXPECT_TRUE(split("cpu", topology_).has_value());
  topology_.gpus.clear();
  EXPECT_TRUE(split("auto", topology_).has_value());
}

TEST(DeviceComparison, the_first_option_is_left_for_one_that_is_clearly_faster) {
  const auto option = [](double read_seconds) {
    return DeviceOption{
        .names = "x", .read_seconds = read_seconds, .exchanges = 100, .seconds_per_exchange = 1e-4};
  };
  EXPECT_EQ(choose_option(std::vector{option(0.09), option(0.1)}), 0U);
  EXPECT_EQ(choose_option(std::vector{option(0.09), option(0.082)}), 0U);
  EXPECT_EQ(choose_option(std::vector{option(0.09), option(0.08)}), 1U);
  EXPECT_EQ(choose_option(std::vector{option(0.09), option(0.07), option(0.04)}), 2U);
  DeviceOption gpu = option(0.04);
  gpu.names = "gpu0, node0";
  DeviceOption node = {.names = "node0", .read_seconds = 0.1};
  EXPECT_EQ(compare_options(std::vector{gpu, node}, 0),
            "gpu0, node0 generate at most 20.0 tokens/s (40.0 ms to read, 10.0 ms for 100 "
            "exchanges), node0 10.0 tokens/s (100.0 ms to read, 0.0 ms for 0 exchanges)");
  EXPECT_THAT(compare_options(std::vector{gpu, node}, 1),
              ::testing::AllOf(::testing::StartsWith("node0 generate"),
                               ::testing::EndsWith(", which is not a tenth faster")));
}

}  // namespace
}  // namespace lockstep
