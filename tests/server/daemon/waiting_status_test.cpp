// Whom the daemon says that it waits for.
#include "server/daemon/waiting_status.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(WaitingStatus, what_was_told_last_holds_until_the_wait_is_over) {
  WaitingStatus status;
  EXPECT_EQ(status.text(), "");
  status.tell("host 1 of 2 hosts");
  EXPECT_EQ(status.text(), "Waits for host 1 of 2 hosts");
  status.tell("host 0 (a:1)");
  EXPECT_EQ(status.text(), "Waits for host 0 (a:1)");
  status.tell("");
  EXPECT_EQ(status.text(), "");
}

}  // namespace
}  // namespace lockstep
