#include "server/http/descriptor_shares.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr DescriptorShares kDefaults{.connections = 4096,
                                     .over_limit = 64,
                                     .probe_connections = 256,
                                     .probe_over_limit = 64,
                                     .kept = 20};

size_t sum(const DescriptorShares& shares) {
  return shares.connections + shares.over_limit + shares.probe_connections +
         shares.probe_over_limit + shares.kept;
}

TEST(DescriptorShares, everybody_has_what_is_wanted_where_there_is_enough) {
  for (const size_t limit : {size_t{4096 + 64 + 256 + 64 + 256}, size_t{16384}}) {
    const DescriptorShares shares = share_descriptors(limit, kDefaults);
    EXPECT_EQ(shares.connections, 4096U);
    EXPECT_EQ(shares.over_limit, 64U);
    EXPECT_EQ(shares.probe_connections, 256U);
    EXPECT_EQ(shares.probe_over_limit, 64U);
    EXPECT_GE(shares.kept, 256U);
  }
}

TEST(DescriptorShares, under_no_limit_are_more_given_than_there_are_and_nobody_gets_none) {
  for (size_t limit = 64; limit <= 6000; ++limit) {
    const DescriptorShares shares = share_descriptors(limit, kDefaults);
    ASSERT_LE(sum(shares), limit);
    ASSERT_GE(shares.connections, 1U);
    ASSERT_GE(shares.over_limit, 1U);
    ASSERT_GE(shares.probe_connections, 1U);
    ASSERT_GE(shares.probe_over_limit, 1U);
    ASSERT_GE(shares.kept, kDefaults.kept + 16);
  }
  EXPECT_GE(share_descriptors(0, kDefaults).connections, 1U);
}

TEST(DescriptorShares, without_an_address_for_probes_nothing_is_kept_for_it) {
  const DescriptorShares shares =
      share_descriptors(64, {.connections = 4096, .over_limit = 64, .kept = 20});
  EXPECT_EQ(shares.probe_connections + shares.probe_over_limit, 0U);
  EXPECT_GT(shares.connections, share_descriptors(64, kDefaults).connections);
}

TEST(DescriptorShares, the_crowd_has_most_of_what_is_left) {
  const DescriptorShares shares = share_descriptors(1024, kDefaults);
  EXPECT_GE(shares.connections, 400U);
  EXPECT_GE(open_descriptors(), 3U);
}

}  // namespace
}  // namespace lockstep
