// The file that says no, whatever this build has.
#include <gmock/gmock.h>
#include <stdlib.h>

#include "engine/collectives/nccl.h"

namespace lockstep {
namespace {

TEST(NoNccl, says_that_it_was_built_without_and_what_to_do) {
  const int gpus[] = {0, 1};
  const auto ranks = NcclRanks::create(gpus, std::chrono::seconds(1));
  ASSERT_FALSE(ranks.has_value());
  EXPECT_EQ(ranks.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(ranks.error().message, ::testing::HasSubstr("2 GPUs"));
  EXPECT_THAT(ranks.error().message, ::testing::HasSubstr("LOCKSTEP_NCCL=ON"));
}

TEST(NoNccl, leaves_the_environment_as_it_is) {
  unsetenv("NCCL_ALGO");
  fix_nccl_order();
  EXPECT_EQ(getenv("NCCL_ALGO"), nullptr);
}

}  // namespace
}  // namespace lockstep
