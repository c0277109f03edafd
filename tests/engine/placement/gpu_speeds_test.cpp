// Shares and a plan's estimate follow the GPUs' speeds. The tests say when these are measured, on
// simulated machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/placement/device_rules.h"
#include "engine/placement/gpu_traits.h"
#include "tests/engine/placement/devices_case.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class GpuSpeedsTest : public DevicesTest {
 protected:
  // GPUs of two kinds that report the same memory: gpu0 and gpu1, gpu2 and gpu3.
  static Topology machine_with_two_kinds() {
    Topology topology = machine_with_linked_gpus();
    for (const size_t other : {2u, 3u}) topology.gpus[other].name = "Other simulated GPU";
    return topology;
  }

  static std::vector<double> shares_of(const Result<ModelLayout>& layout) {
    std::vector<double> shares;
    EXPECT_TRUE(layout.has_value()) << layout.error().message;
    if (!layout) return shares;
    for (const RankPlace& place : layout->places) shares.push_back(place.share);
    return shares;
  }
};

TEST_F(GpuSpeedsTest, gpus_of_one_kind_share_evenly_and_are_not_measured) {
  const auto layout = split("gpu", machine_with_linked_gpus());
  EXPECT_THAT(shares_of(layout), ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(layout->gpu_speeds, std::nullopt);
  EXPECT_THAT(layout->devices.reason, Not(HasSubstr("shares")));
  split("gpu2", machine_with_two_kinds());
  split("gpu0,gpu1", machine_with_two_kinds());
  split("cpu", machine_with_two_kinds());
  EXPECT_THAT(measured_, IsEmpty());
}

TEST_F(GpuSpeedsTest, gpus_of_two_kinds_share_in_whole_parts_by_what_is_measured_of_each_kind) {
  for (const double fast : {5e12, 5.04e12}) {
    measured_.clear();
    speeds_ = {{0, fast}, {1, 9e12}, {2, 3e12}, {3, 9e12}};
    const auto layout = split("gpu0,gpu1,gpu2", machine_with_two_kinds());
    EXPECT_THAT(shares_of(layout), ElementsAre(37, 37, 22));
    EXPECT_THAT(measured_, ElementsAre(0, 2));
    EXPECT_TRUE(layout->gpu_speeds->measured);
    EXPECT_THAT(layout->devices.reason, HasSubstr("shares follow bandwidth, of GPUs as measured"));
  }
}

TEST_F(GpuSpeedsTest, a_kind_is_as_much_memory_as_a_name) {
  Topology topology = machine_with_linked_gpus();
  topology.gpus[1].memory_bytes = topology.gpus[1].free_bytes = 40 * kGiB;
  speeds_ = {{0, 3e12}, {1, 1e12}};
  EXPECT_THAT(shares_of(split("gpu0,gpu1", topology)), ElementsAre(48, 16));
}

TEST_F(GpuSpeedsTest, of_a_kind_the_gpu_with_the_most_free_memory_is_measured) {
  Topology topology = machine_with_two_kinds();
  leave(topology.gpus[0], (uint64_t{512} << 20U) - 1);
  ASSERT_TRUE(split("gpu", topology).has_value());
  EXPECT_THAT(measured_, ElementsAre(1, 2));
}

TEST_F(GpuSpeedsTest, shares_that_are_given_need_no_measurement) {
  options_.shares = {3, 2, 2, 2};
  EXPECT_THAT(shares_of(split("gpu", machine_with_two_kinds())), ElementsAre(3, 2, 2, 2));
  options_.shares = {2, 1, 1};
  EXPECT_THAT(shares_of(split("gpu3,node0,node1", machine_with_one_gpu())), ElementsAre(2, 1, 1));
  EXPECT_THAT(measured_, IsEmpty());
}

// Clocks do not compare with what is measured.
TEST_F(GpuSpeedsTest, where_one_has_too_little_free_memory_all_go_by_their_clocks) {
  Topology topology = machine_with_two_kinds();
  topology.gpus[0].bytes_per_second = topology.gpus[1].bytes_per_second = 5.5e12;
  leave(topology.gpus[2], (uint64_t{512} << 20U) - 1);
  const auto layout = split("gpu0,gpu1,gpu2", topology);
  EXPECT_THAT(shares_of(layout), ElementsAre(37, 37, 22));
  EXPECT_THAT(measured_, IsEmpty());
  EXPECT_FALSE(layout->gpu_speeds->measured);
  EXPECT_THAT(layout->devices.reason,
              HasSubstr("of GPUs by their memory's clock and width: gpu2 has 511 MiB free"));
  topology.gpus[0].bytes_per_second = 0;  // it does not say
  EXPECT_THAT(shares_of(split("gpu0,gpu1,gpu2", topology)), ElementsAre(1, 1, 1));
  leave(topology.gpus[2], uint64_t{512} << 20U);
  EXPECT_TRUE(split("gpu1,gpu2", topology)->gpu_speeds->measured);
}

TEST_F(GpuSpeedsTest, without_a_platform_gpus_go_by_their_clocks) {
  const Topology topology = machine_with_two_kinds();
  const auto speeds = measure_gpu_speeds(nullptr, topology, std::vector<int>{1, 2});
  ASSERT_TRUE(speeds.has_value());
  EXPECT_FALSE(speeds->measured);
  EXPECT_EQ(speeds->bytes_per_second, (std::map<int, double>{{1, 3.3e12}, {2, 3.3e12}}));
}

// It would fail at the load as well.
TEST_F(GpuSpeedsTest, a_gpu_that_fails_at_it_is_refused_by_name_and_left_out_by_default) {
  speeds_ = {{2, 0}};
  const auto refused = split("gpu", machine_with_two_kinds());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kMachineRefused);
  EXPECT_EQ(refused.error().message, "gpu2 does not answer");
  EXPECT_THAT(measured_, ElementsAre(0, 2));  // nor is it asked again for smaller passes
  const auto fewer = split("auto", machine_with_two_kinds());
  ASSERT_TRUE(fewer.has_value()) << fewer.error().message;
  EXPECT_THAT(fewer->devices.gpus, ElementsAre(0, 1));
  EXPECT_THAT(fewer->devices.reason, HasSubstr("2 of 4 GPUs, since gpu2 does not answer"));
}

TEST_F(GpuSpeedsTest, among_nodes_a_gpu_has_the_share_that_is_measured) {
  Topology topology = read_topology();  // nodes that can be measured
  topology.gpus = {simulated_gpu(3, -1)};
  topology.gpus[0].bytes_per_second = 0;  // it need not say
  options_.rank_count = 2;
  const auto devices = choose_devices("all", topology, 0);
  ASSERT_TRUE(devices.has_value()) << devices.error().message;
  const Machine machine = machine_of(topology, platform_);
  const auto settings = parse(options_, machine);
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  // A byte per second, and more than any node.
  for (const auto& [speed, share] : std::map<double, double>{{1, 1}, {1e18, 64}}) {
    const auto places =
        find_places(*settings, machine, *devices, {}, GpuSpeeds{{{3, speed}}, true, ""});
    ASSERT_TRUE(places.has_value()) << places.error().message;
    EXPECT_EQ(places->front().share, share);
  }
}

TEST_F(GpuSpeedsTest, a_plan_tells_whether_its_estimate_is_by_what_was_measured) {
  const Machine machine = this_machine_with(machine_with_two_kinds().gpus);
  options_.devices = "gpu0,gpu1";
  speeds_ = {{0, 2e12}, {2, 1.5e12}};
  const auto alike = plan_machine(options_, machine, /*measure=*/true);
  ASSERT_TRUE(alike.has_value()) << alike.error().message;
  EXPECT_THAT(measured_, ElementsAre(0));
  for (const MachinePlan::Rank& rank : alike->ranks) {
    EXPECT_TRUE(rank.measured);
    EXPECT_EQ(rank.bytes_per_second, 2e12);
  }
  EXPECT_THAT(alike->verdict, HasSubstr("measured, and without what ranks exchange"));
  EXPECT_THAT(alike->verdict, Not(HasSubstr("clock")));
  // For the shares, and not once more.
  options_.devices = "gpu";
  measured_.clear();
  ASSERT_TRUE(plan_machine(options_, machine, /*measure=*/true).has_value());
  EXPECT_THAT(measured_, ElementsAre(0, 2));
  options_.devices = "gpu0";
  measured_.clear();
  ASSERT_TRUE(plan_machine(options_, machine, /*measure=*/false).has_value());
  EXPECT_THAT(measured_, IsEmpty());
  speeds_ = {{0, 0}};
  const auto failing = plan_machine(options_, machine, /*measure=*/true);
  ASSERT_TRUE(failing.has_value()) << failing.error().message;
  EXPECT_FALSE(failing->ranks[0].measured);
  EXPECT_EQ(failing->ranks[0].bytes_per_second, 3.3e12);
  EXPECT_THAT(failing->verdict, HasSubstr("clock and width, which no kernel reaches"));
  EXPECT_THAT(failing->verdict, HasSubstr("not measured: gpu0 does not answer"));
}

}  // namespace
}  // namespace lockstep
