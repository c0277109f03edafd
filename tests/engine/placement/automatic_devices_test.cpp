// The choice of devices where none are named, on simulated machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/measure/plan_report.h"
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
  const auto plan = plan_machine(options_, this_machine_with(topology.gpus), /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->devices.names, "gpu2");
  EXPECT_THAT(plan->devices.reason, HasSubstr("1 of 4 GPUs, since"));
}

TEST_F(AutomaticDevices, by_default_gpus_that_have_no_space_for_the_model_compute_beside_nodes) {
  Topology topology = machine_with_one_gpu();
  options_.context_tokens = 256;
  options_.sequence_count = 1;
  options_.batch_tokens = 32;
  const auto whole = split("gpu3", topology);
  ASSERT_TRUE(whole.has_value() && sized_.has_value());
  Gpu& gpu = topology.gpus[0];
  const RankSizes& sizes = whole->sizes[0];
  gpu.free_bytes -= usable_bytes(gpu) - (sizes.gpu_bytes() - sizes.weight_bytes / 4);
  gpu.bytes_per_second = 2e11;  // as fast as both nodes
  const auto beside = split("auto", topology);
  ASSERT_TRUE(beside.has_value()) << beside.error().message;
  ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
  EXPECT_THAT(beside->devices.gpus, ElementsAre(3));
  EXPECT_THAT(beside->devices.nodes, ElementsAre(0, 1));
  EXPECT_THAT(beside->devices.reason,
              HasSubstr("GPUs beside nodes, since the model does not fit on all GPUs"));
  // Ranks and shares were asked for as they are on nodes.
  options_.rank_count = 2;
  const auto nodes = split("auto", topology);
  ASSERT_TRUE(nodes.has_value()) << nodes.error().message;
  EXPECT_TRUE(nodes->devices.gpus.empty()) << nodes->devices.reason;
  // Both reasons are told.
  options_.rank_count = 0;
  gpu.bytes_per_second = 0;
  const auto silent = split("auto", topology);
  ASSERT_TRUE(silent.has_value()) << silent.error().message;
  EXPECT_TRUE(silent->devices.gpus.empty());
  EXPECT_THAT(silent->devices.reason, HasSubstr("the model does not fit on all GPUs"));
  EXPECT_THAT(silent->devices.reason, HasSubstr("nor beside nodes, since gpu3 does not say"));
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
  // They are told what fits where they are named.
  ASSERT_TRUE(split("gpu", topology).has_value());
  EXPECT_FALSE(sized_.has_value());
}

}  // namespace
}  // namespace lockstep
