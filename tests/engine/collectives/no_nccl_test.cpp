// The file that says no, whatever this build has.
#include <gmock/gmock.h>

#include "engine/collectives/nccl.h"

namespace lockstep {
namespace {

TEST(NoNccl, says_that_it_was_built_without_and_what_to_do) {
  const int gpus[] = {0, 1};
  const auto ranks = NcclRanks::create(gpus, std::chrono::seconds(1));
  EXPECT_THAT(nccl_absence(), ::testing::StartsWith("in a build without NCCL"));
  EXPECT_EQ(no_shared_gpus(), nccl_absence());
  ASSERT_FALSE(ranks.has_value());
  EXPECT_EQ(ranks.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(ranks.error().message, ::testing::HasSubstr("2 GPUs"));
  EXPECT_THAT(ranks.error().message, ::testing::HasSubstr("LOCKSTEP_NCCL=ON"));
}

}  // namespace
}  // namespace lockstep
