// Tests who is taken into a full queue. Simulations print their seed.
#include "engine/scheduler/queue_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace lockstep {
namespace {

using GroupId = QueueShares::GroupId;
using Shortage = QueueShares::Shortage;

QueueShares::Demand demand(const std::string& tenant, size_t places = 1, size_t tokens = 1) {
  return {.tenant = tenant, .requests = places, .places = places, .prompt_tokens = tokens * places};
}

TEST(QueueShares, one_holder_alone_may_have_everything) {
  QueueShares shares;
  const QueueShares::Limits limits{.places = 4, .prompt_tokens = 100};
  for (GroupId id = 1; id <= 4; ++id) ASSERT_TRUE(shares.take(id, demand("a"), limits)) << id;
  EXPECT_EQ(shares.take(5, demand("a"), limits).error(), Shortage::kPlaces);
}

TEST(QueueShares, another_holder_displaces_the_last_that_waits) {
  QueueShares shares;
  const QueueShares::Limits limits{.places = 4, .prompt_tokens = 100};
  for (GroupId id = 1; id <= 4; ++id) ASSERT_TRUE(shares.take(id, demand("a"), limits));
  shares.start(4, 1);  // it runs: 3 is the last that waits
  EXPECT_EQ(shares.take(5, demand("b"), limits).value(), std::vector<GroupId>{3});
  EXPECT_EQ(shares.take(6, demand("b"), limits).value(), std::vector<GroupId>{2});
  // Both have their half now.
  EXPECT_EQ(shares.take(7, demand("b"), limits).error(), Shortage::kPlaces);
  EXPECT_EQ(shares.take(7, demand("a"), limits).error(), Shortage::kPlaces);
  EXPECT_EQ(shares.places(), 4U);
  shares.end(3, 1, 1, true);  // it has been displaced: nothing happens
  EXPECT_EQ(shares.places(), 4U);
}

TEST(QueueShares, one_group_that_fills_the_queue_goes_as_a_whole) {
  QueueShares shares;
  const QueueShares::Limits limits{.places = 128, .prompt_tokens = 1000};
  ASSERT_TRUE(shares.take(1, demand("a", 128), limits));
  shares.start(1, 1);
  EXPECT_EQ(shares.take(2, demand("b"), limits).value(), std::vector<GroupId>{1});
  EXPECT_EQ(shares.places(), 1U);
  EXPECT_EQ(shares.prompt_tokens(), 1U);
}

TEST(QueueShares, what_runs_is_never_displaced) {
  QueueShares shares;
  const QueueShares::Limits limits{.places = 2, .prompt_tokens = 100};
  for (GroupId id = 1; id <= 2; ++id) {
    ASSERT_TRUE(shares.take(id, demand("a"), limits));
    shares.start(id, 1);
  }
  EXPECT_EQ(shares.take(3, demand("b"), limits).error(), Shortage::kPlaces);
}

TEST(QueueShares, prompts_that_wait_are_shared_too) {
  QueueShares shares;
  const QueueShares::Limits limits{.places = 100, .prompt_tokens = 1000};
  for (GroupId id = 1; id <= 10; ++id) ASSERT_TRUE(shares.take(id, demand("a", 1, 100), limits));
  EXPECT_EQ(shares.take(11, demand("a", 1, 100), limits).error(), Shortage::kPromptTokens);
  EXPECT_EQ(shares.take(11, demand("b", 1, 150), limits).value(), (std::vector<GroupId>{9, 10}));
  // More than a share, but its first: as many go as leave the others within theirs.
  EXPECT_TRUE(shares.take(12, demand("c", 1, 400), limits));
}

TEST(QueueShares, a_prompt_of_any_length_is_taken_where_nothing_waits) {
  QueueShares shares;
  EXPECT_TRUE(shares.take(1, demand("a", 1, 5000), {.places = 4, .prompt_tokens = 100}));
  EXPECT_EQ(shares.take(2, demand("a"), {.places = 4, .prompt_tokens = 100}).error(),
            Shortage::kPromptTokens);
}

// One tenant sends whatever it likes as fast as it can; the others ask for one thing at a time.
TEST(QueueShares, beside_one_that_floods_every_others_request_is_taken) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](size_t end) { return static_cast<size_t>(random() % end); };
    const size_t others = 1 + below(20);
    const size_t running = 1 + below(8);
    const QueueShares::Limits limits{.places = running + (others + 1) * (1 + below(20)),
                                     .prompt_tokens = 100 * (others + 1) * (1 + below(5))};
    QueueShares shares;
    struct Request {
      std::string tenant;
      size_t places;
      size_t tokens;  // of each
      size_t started = 0;
    };
    std::map<GroupId, Request> there;
    GroupId next = 1;
    size_t started = 0;
    const auto ask = [&](const std::string& tenant, size_t places, size_t tokens) {
      const auto gone = shares.take(next, demand(tenant, places, tokens), limits);
      if (!gone) return false;
      for (const GroupId id : *gone) {
        EXPECT_EQ(there.at(id).tenant, "flood");
        started -= there.at(id).started;
        there.erase(id);
      }
      there[next++] = {tenant, places, tokens};
      return true;
    };
    for (size_t step = 0; step < 500; ++step) {
      for (size_t tries = below(20); tries > 0; --tries) {
        ask("flood", 1 + below(40), 1 + below(200));
      }
      const std::string other = "tenant " + std::to_string(below(others));
      const bool has_one = std::ranges::any_of(
          there, [&](const auto& entry) { return entry.second.tenant == other; });
      if (!has_one) {
        EXPECT_TRUE(ask(other, 1, 1 + below(100))) << other;
      }
      // The engine starts what came first and ends some of what runs.
      for (auto& [id, request] : there) {
        while (started < running && request.started < request.places) {
          shares.start(id, request.tokens);
          ++request.started;
          ++started;
        }
      }
      const auto done = std::ranges::find_if(
          there, [&](const auto& entry) { return entry.second.started == entry.second.places; });
      if (done == there.end() || below(2) == 0) continue;
      for (size_t place = 0; place < done->second.places; ++place) {
        shares.end(done->first, 1, done->second.tokens, false);
      }
      started -= done->second.places;
      there.erase(done);
    }
    size_t places = 0;
    for (const auto& [id, request] : there) places += request.places;
    EXPECT_EQ(shares.places(), places);
  }
}

}  // namespace
}  // namespace lockstep
