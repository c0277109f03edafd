// MPI's own: the process that loads it, and the job that it is part of.
#include "engine/collectives/mpi_link.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "tests/engine/collectives/connected_hosts.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string obstacle = mpi_obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
  }

  // Both ends' results.
  static auto make_both(size_t bytes_most) {
    ConnectedHosts hosts = connect_hosts(host_options(false), host_options(false));
    return both_at_once(
        [&] {
          return std::optional(make_mpi_link(std::move(hosts.accepted), bytes_most, nullptr));
        },
        [&] { return make_mpi_link(std::move(hosts.connected), bytes_most, nullptr); });
  }
};

TEST_F(Mpi, leaves_the_processs_signals_as_they_are) {
  constexpr int kTaken[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGCHLD, SIGPIPE};
  std::vector<sighandler_t> before;
  for (const int each : kTaken) before.push_back(::signal(each, SIG_IGN));
  const auto [one, two] = make_both(1);
  EXPECT_TRUE(one->has_value() && two.has_value());
  for (size_t index = 0; index < std::size(kTaken); ++index) {
    EXPECT_EQ(::signal(kTaken[index], before[index]), SIG_IGN) << kTaken[index];
  }
}

TEST_F(Mpi, exchanges_beyond_its_numbers_are_refused) {
  const auto [one, two] = make_both(size_t{1} << 31U);
  for (const auto* const link : {&one.value(), &two}) {
    ASSERT_FALSE(link->has_value());
    EXPECT_THAT(link->error().message, HasSubstr("2147483648 bytes"));
  }
}

// The ends tell one another their jobs: here one end is the test, with a place that is none.
TEST_F(Mpi, a_host_of_another_job_is_refused) {
  ConnectedHosts hosts = connect_hosts(host_options(false), host_options(false));
  const auto [said, link] = both_at_once(
      [&] {
        std::vector<std::byte> place(16 + 3 * sizeof(int32_t), std::byte{1});
        std::vector<std::byte> theirs(place.size());
        return hosts.connected->exchange(place, theirs);
      },
      [&] { return make_mpi_link(std::move(hosts.accepted), 1, nullptr); });
  ASSERT_FALSE(link.has_value());
  EXPECT_THAT(link.error().message, HasSubstr("not started by the same mpirun or srun"));
  EXPECT_TRUE(said.has_value());
}

}  // namespace
}  // namespace lockstep
