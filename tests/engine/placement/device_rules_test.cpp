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
  const auto places = find_places(*settings, machine, *devices, 0, std::nullopt);
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
