#include "engine/placement/device_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/placement/machine_of.h"
#include "tests/engine/placement/place_model.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

TEST(DeviceRules, shares_by_bandwidth_are_in_parts_that_hide_small_differences) {
  EXPECT_THAT(shares_in_parts({100e9, 101e9}), ElementsAre(32, 32));
  EXPECT_THAT(shares_in_parts({101e9, 100e9}), ElementsAre(32, 32));
  EXPECT_THAT(shares_in_parts({100e9, 300e9}), ElementsAre(16, 48));
  EXPECT_THAT(shares_in_parts({1e9, 300e9, 299e9}), ElementsAre(1, 48, 48));
}

TEST(DeviceRules, what_a_limit_leaves_goes_to_the_others_by_their_bandwidth) {
  EXPECT_THAT(shares_within({1, 3}, {1, 1}), ElementsAre(0.25, 0.75));
  EXPECT_THAT(shares_within({1, 3}, {1, 0.5}), ElementsAre(0.5, 0.5));
  // The second gets more by what the first leaves, and reaches its own limit by it.
  EXPECT_THAT(shares_within({8, 4, 2, 2}, {0.25, 0.25, 1, 1}), ElementsAre(0.25, 0.25, 0.25, 0.25));
  EXPECT_THAT(shares_within({1, 2, 1}, {1, 0, 1}), ElementsAre(0.5, 0, 0.5));
  // Too little for all: as the limits are.
  EXPECT_THAT(shares_within({9, 1}, {0.25, 0.125}),
              ElementsAre(::testing::DoubleEq(2.0 / 3), ::testing::DoubleEq(1.0 / 3)));
  EXPECT_THAT(shares_within({9, 1}, {0, 0}), ElementsAre(0.5, 0.5));
}

TEST(DeviceRules, measured_shares_are_in_parts) {
  EngineOptions options;
  options.rank_count = 2;
  options.worker_count = 1;
  options.measure_shares = true;
  const Topology topology = read_topology();
  const auto devices = choose_devices("cpu", topology, 0);
  ASSERT_TRUE(devices.has_value()) << devices.error().message;
  const Machine machine = machine_of(topology);
  const auto settings = parse(options, machine);
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  const auto places = find_places(*settings, machine, *devices, {}, std::nullopt);
  ASSERT_TRUE(places.has_value()) << places.error().message;
  double all = 0;
  for (const RankPlace& place : *places) {
    EXPECT_EQ(place.share, std::round(place.share));
    all += place.share;
  }
  EXPECT_NEAR(all, 64, 1);
}

}  // namespace
}  // namespace lockstep
