// Tests which replica gets a request.
#include "engine/simulation/router.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace lockstep {
namespace {

constexpr size_t kReplicas = 4;

SimulatedRequest with_prefix(const std::string& name, size_t tokens = 640) {
  return {.tenant = {},
          .prompt_tokens = tokens,
          .prefix = name,
          .prefix_tokens = tokens,
          .conversation = {}};
}

TEST(Router, in_turns) {
  const auto router = make_router("round-robin", kReplicas, 1);
  const std::vector<ReplicaState> states(kReplicas);
  for (size_t number = 0; number < 8; ++number) {
    EXPECT_EQ(router->choose({}, number, states), number % kReplicas);
  }
}

TEST(Router, to_the_fewest_requests) {
  const auto router = make_router("least-waiting", kReplicas, 1);
  const std::vector<ReplicaState> states = {
      {.waiting = 1, .running = 8}, {.running = 8}, {.running = 7}, {.waiting = 7}};
  std::set<size_t> chosen;
  for (size_t number = 0; number < 50; ++number) chosen.insert(router->choose({}, number, states));
  EXPECT_EQ(chosen, (std::set<size_t>{2, 3})) << "ties are drawn";
}

TEST(Router, to_the_replica_that_had_the_prefix) {
  const auto router = make_router("prefix", kReplicas, 1);
  std::vector<ReplicaState> states(kReplicas);
  std::set<size_t> firsts;
  for (int prefix = 0; prefix < 20; ++prefix) {
    const SimulatedRequest request = with_prefix(std::to_string(prefix));
    const size_t first = router->choose(request, 0, states);
    firsts.insert(first);
    for (size_t number = 1; number < 5; ++number) {
      EXPECT_EQ(router->choose(request, number, states), first);
    }
  }
  EXPECT_EQ(firsts.size(), kReplicas);
}

// Three for a whole prefix is more than two for the queue, and less than two each for queue and
// pages.
TEST(Router, weighs_prefixes_against_queues_and_pages) {
  const auto router = make_router("prefix", 2, 1);
  std::vector<ReplicaState> states(2);
  const SimulatedRequest request = with_prefix("p");
  const size_t first = router->choose(request, 0, states);
  states[first].waiting = 10;
  EXPECT_EQ(router->choose(request, 1, states), first);
  states[first].page_use = 0.6;
  EXPECT_EQ(router->choose(request, 2, states), 1 - first);
  states[first].page_use = 0.4;
  EXPECT_EQ(router->choose(with_prefix("q"), 3, states), 1 - first) << "a prefix of neither";
}

TEST(Router, weighs_prefixes_against_its_own_active_requests) {
  const auto router = make_router("prefix-active", 2, 1);
  std::vector<ReplicaState> states(2);
  const SimulatedRequest request = with_prefix("p");
  const size_t first = router->choose(request, 0, states);
  states[first].active = 3;
  states[1 - first].active = 1;
  EXPECT_EQ(router->choose(request, 1, states), first) << "3 for the prefix, 2 2/3 for the load";
  states[1 - first].active = 0;
  EXPECT_EQ(router->choose(request, 2, states), 1 - first) << "4 for the load";
  states[first] = {.waiting = 10, .active = 1};
  states[1 - first].active = 2;
  EXPECT_EQ(router->choose(with_prefix("q"), 3, states), first) << "queues do not count";
}

TEST(Router, a_prompt_shorter_than_a_block_has_no_prefix) {
  const auto router = make_router("prefix", kReplicas, 1);
  const std::vector<ReplicaState> states(kReplicas);
  std::set<size_t> chosen;
  for (size_t number = 0; number < 50; ++number) {
    chosen.insert(router->choose(with_prefix("p", 63), number, states));
  }
  EXPECT_EQ(chosen.size(), kReplicas);
}

}  // namespace
}  // namespace lockstep
