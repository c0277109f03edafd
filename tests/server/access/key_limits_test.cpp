// The limits of keys' owners, over simulated times.
#include "server/access/key_limits.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
constexpr KeyLimits::Time kStart{1h};

KeyOwner owner(std::string name, KeyAllowance allowance) {
  return {std::move(name), {}, allowance};
}

std::string header(const KeyLimits::Headers& headers, const std::string& name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "none";
}

// A request's begin: its place, then its tokens; without these it ends again.
std::expected<uint64_t, KeyLimits::Refusal> begin(KeyLimits& limits, std::string_view name,
                                                  const KeyLimits::TokenDemand& demand,
                                                  KeyLimits::Time now) {
  if (auto entered = limits.enter(name, 0, now); !entered) return std::unexpected(entered.error());
  auto reserved = limits.reserve(name, demand, 0, now);
  if (!reserved) limits.end(name, 0, 0, now);
  return reserved;
}

TEST(KeyLimits, requests_per_minute_are_counted_and_come_back_evenly) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.requests_per_minute = 6})}, kStart);
  for (int count = 0; count < 6; ++count) EXPECT_TRUE(limits.count_request("a", kStart));
  const auto refused = limits.count_request("a", kStart);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().retry_after_seconds, 10);
  EXPECT_EQ(header(refused.error().headers, "x-ratelimit-limit-requests"), "6");
  EXPECT_EQ(header(refused.error().headers, "x-ratelimit-remaining-requests"), "0");
  EXPECT_EQ(header(refused.error().headers, "x-ratelimit-reset-requests"), "1m0s");
  EXPECT_EQ(header(refused.error().headers, "x-ratelimit-limit-tokens"), "none");
  EXPECT_FALSE(limits.count_request("a", kStart + 9s));
  EXPECT_TRUE(limits.count_request("a", kStart + 10s));
  EXPECT_FALSE(limits.count_request("a", kStart + 10s));
  // An hour of silence is worth no more than a minute.
  for (int count = 0; count < 6; ++count) EXPECT_TRUE(limits.count_request("a", kStart + 1h));
  EXPECT_FALSE(limits.count_request("a", kStart + 1h));
}

TEST(KeyLimits, tokens_are_reserved_at_the_begin_and_charged_as_used_at_the_end) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 600})}, kStart);
  const auto first = begin(limits, "a", {400}, kStart);
  ASSERT_TRUE(first);
  const auto refused = begin(limits, "a", {300}, kStart);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().retry_after_seconds, 10);  // 100 of 600 per minute
  EXPECT_EQ(header(refused.error().headers, "x-ratelimit-remaining-tokens"), "200");
  EXPECT_NE(refused.error().message.find("300"), std::string::npos);
  limits.end("a", *first, 50, kStart);
  EXPECT_EQ(header(limits.headers("a", kStart), "x-ratelimit-remaining-tokens"), "550");
  EXPECT_EQ(header(limits.headers("a", kStart), "x-ratelimit-reset-tokens"), "5s");
  EXPECT_TRUE(begin(limits, "a", {550}, kStart));
}

TEST(KeyLimits, a_request_for_more_than_a_minutes_tokens_needs_a_full_minute) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 100})}, kStart);
  const auto whole = begin(limits, "a", {1'000'000}, kStart);
  ASSERT_TRUE(whole);
  EXPECT_EQ(*whole, 100U);
  limits.end("a", *whole, 300, kStart);  // it came to three minutes' worth
  EXPECT_FALSE(begin(limits, "a", {1}, kStart + 119s));
  EXPECT_TRUE(begin(limits, "a", {1}, kStart + 121s));
}

// 400 a minute, and a context of 512 that no answer comes near.
constexpr KeyLimits::TokenDemand kOpenChat{.tokens = 10, .open_tokens = 502, .open_choices = 1};

TEST(KeyLimits, answers_that_may_fill_the_context_run_in_a_row_and_at_once) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 400})}, kStart);
  for (int count = 0; count < 5; ++count) {
    const auto one = begin(limits, "a", kOpenChat, kStart);
    ASSERT_TRUE(one);
    EXPECT_EQ(*one, 60U);  // the prompt and an eighth of the minute
    limits.end("a", *one, 21, kStart);
  }
  for (int count = 0; count < 4; ++count) EXPECT_TRUE(begin(limits, "a", kOpenChat, kStart));
  const auto refused = begin(limits, "a", kOpenChat, kStart);  // 295 - 4 * 60 are left
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("reserves 60, and 55 are left"), std::string::npos);
}

TEST(KeyLimits, what_is_less_than_an_eighth_is_reserved_as_it_is_and_each_choice_has_its_eighth) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 800})}, kStart);
  const auto little =
      begin(limits, "a", {.tokens = 500, .open_tokens = 12, .open_choices = 1}, kStart);
  ASSERT_TRUE(little);
  EXPECT_EQ(*little, 512U);
  limits.end("a", *little, 0, kStart);
  const auto three =
      begin(limits, "a", {.tokens = 10, .open_tokens = 1500, .open_choices = 3}, kStart);
  ASSERT_TRUE(three);
  EXPECT_EQ(*three, 310U);
}

TEST(KeyLimits, who_has_used_more_than_was_reserved_waits_until_that_is_simulated_for) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 400})}, kStart);
  const auto one = begin(limits, "a", kOpenChat, kStart);
  ASSERT_TRUE(one);
  limits.end("a", *one, 500, kStart);  // 100 more than there were
  const auto refused = begin(limits, "a", {1}, kStart);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().retry_after_seconds, 16);  // 101 of 400 per minute
  EXPECT_EQ(header(refused.error().headers, "x-ratelimit-remaining-tokens"), "0");
  EXPECT_FALSE(begin(limits, "a", {1}, kStart + 15s));
  EXPECT_TRUE(begin(limits, "a", {1}, kStart + 16s));
}

TEST(KeyLimits, so_many_at_once) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.concurrent = 2}), owner("b", {.concurrent = 1})}, kStart);
  EXPECT_TRUE(begin(limits, "a", {10}, kStart));
  EXPECT_TRUE(begin(limits, "a", {10}, kStart));
  EXPECT_FALSE(begin(limits, "a", {10}, kStart));
  EXPECT_TRUE(begin(limits, "b", {10}, kStart));
  limits.end("a", 0, 10, kStart);
  EXPECT_TRUE(begin(limits, "a", {10}, kStart));
  EXPECT_FALSE(begin(limits, "a", {10}, kStart));
}

TEST(KeyLimits, who_has_no_token_left_does_not_even_enter) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 60, .concurrent = 5})}, kStart);
  EXPECT_TRUE(limits.enter("a", 0, kStart));
  const auto all = limits.reserve("a", {60}, 0, kStart);
  ASSERT_TRUE(all);
  const auto refused = limits.enter("a", 0, kStart);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().retry_after_seconds, 1);
  EXPECT_EQ(header(refused.error().headers, "x-ratelimit-remaining-tokens"), "0");
  EXPECT_TRUE(limits.enter("a", 0, kStart + 1s));
  limits.end("a", *all, 0, kStart + 1s);
  EXPECT_TRUE(limits.enter("a", 0, kStart + 1s));
}

TEST(KeyLimits, a_preparation_is_charged_by_its_bytes_until_the_request_is_known) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 600})}, kStart);
  const auto prepared = limits.enter("a", 401, kStart);
  EXPECT_EQ(prepared, 101U);  // a token for each four bytes
  EXPECT_EQ(header(limits.headers("a", kStart), "x-ratelimit-remaining-tokens"), "499");
  // The reservation takes the charge's place.
  const auto reserved = limits.reserve("a", {600}, *prepared, kStart);
  EXPECT_EQ(reserved, 600U);
  limits.end("a", *reserved, 50, kStart);
  EXPECT_EQ(header(limits.headers("a", kStart), "x-ratelimit-remaining-tokens"), "550");
}

TEST(KeyLimits, the_steps_of_a_preparation_are_charged_whatever_becomes_of_the_request) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 600})}, kStart);
  const auto left = [&] {
    return header(limits.headers("a", kStart), "x-ratelimit-remaining-tokens");
  };
  const auto prepared = limits.enter("a", 40, kStart);
  limits.charge_steps("a", 256 * 100 + 255, kStart);
  EXPECT_EQ(left(), "490");
  const auto reserved = limits.reserve("a", {50}, *prepared, kStart);
  ASSERT_TRUE(reserved);
  limits.end("a", *reserved, 20, kStart);
  EXPECT_EQ(left(), "480");
  // A minute at most, which is owed, too.
  limits.charge_steps("a", 1'000'000'000, kStart);
  EXPECT_EQ(left(), "0");
  EXPECT_FALSE(limits.enter("a", 1, kStart + 12s));
  EXPECT_TRUE(limits.enter("a", 1, kStart + 13s));
  limits.charge_steps("unknown", 1'000'000, kStart);
}

TEST(KeyLimits, a_request_that_is_refused_after_its_preparation_stays_charged_and_comes_in_later) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 600})}, kStart);
  const auto other = begin(limits, "a", {300}, kStart);
  ASSERT_TRUE(other);
  const auto prepared = limits.enter("a", 400, kStart);
  const auto refused = limits.reserve("a", {350}, *prepared, kStart);
  ASSERT_FALSE(refused);
  limits.end("a", *prepared, *prepared, kStart);
  EXPECT_EQ(header(limits.headers("a", kStart), "x-ratelimit-remaining-tokens"), "200");
  EXPECT_EQ(refused.error().retry_after_seconds, 15);  // 150 of 600 per minute
  const auto later = limits.enter("a", 400, kStart + 15s);
  EXPECT_TRUE(limits.reserve("a", {350}, *later, kStart + 15s));
}

TEST(KeyLimits, a_dear_preparation_costs_a_minute_at_most_and_keeps_others_of_the_key_out) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.tokens_per_minute = 600})}, kStart);
  const auto prepared = limits.enter("a", 4'000'000, kStart);
  EXPECT_EQ(prepared, 600U);
  EXPECT_FALSE(limits.enter("a", 0, kStart));
  limits.end("a", *prepared, *prepared, kStart);
  EXPECT_FALSE(limits.enter("a", 0, kStart));
  EXPECT_TRUE(limits.enter("a", 4'000'000, kStart + 1s));
  EXPECT_FALSE(limits.enter("a", 0, kStart + 60s));  // what it did not have is owed
}

TEST(KeyLimits, who_is_unknown_or_has_no_limit_has_none) {
  KeyLimits limits;
  limits.set_owners({owner("free", {})}, kStart);
  for (const char* name : {"free", "unknown", ""}) {
    for (int count = 0; count < 1000; ++count) {
      EXPECT_TRUE(limits.count_request(name, kStart));
      EXPECT_TRUE(begin(limits, name, {1'000'000}, kStart));
    }
    EXPECT_TRUE(limits.headers(name, kStart).empty());
  }
}

TEST(KeyLimits, a_reload_keeps_what_was_used_and_forgets_who_left) {
  KeyLimits limits;
  limits.set_owners({owner("a", {.requests_per_minute = 2, .concurrent = 1}),
                     owner("b", {.concurrent = 1, .priority = 4})},
                    kStart);
  EXPECT_TRUE(limits.count_request("a", kStart));
  EXPECT_TRUE(begin(limits, "b", {1}, kStart));
  EXPECT_EQ(limits.priority("b"), 4);
  limits.set_owners({owner("a", {.requests_per_minute = 2})}, kStart);
  EXPECT_TRUE(limits.count_request("a", kStart));
  EXPECT_FALSE(limits.count_request("a", kStart));
  limits.end("b", 0, 1, kStart);  // what ran when it was removed ends well
  EXPECT_EQ(limits.priority("b"), 0);
  limits.set_owners({owner("b", {.concurrent = 1})}, kStart);
  EXPECT_TRUE(begin(limits, "b", {1}, kStart));
}

// Over any history: never more than the limit per minute plus one bucket, and what is given back
// is there again.
TEST(KeyLimits, no_history_spends_more_than_it_may) {
  constexpr uint64_t kSeeds = 200;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    constexpr uint64_t kLimit = 1000;
    KeyLimits limits;
    limits.set_owners({owner("a", {.tokens_per_minute = kLimit, .concurrent = 4})}, kStart);
    std::vector<uint64_t> running;
    double spent = 0;
    auto now = kStart;
    for (int step = 0; step < 500; ++step) {
      now += std::chrono::milliseconds(random() % 2000);
      if (random() % 2 == 0) {
        const auto reserved = begin(limits, "a", {random() % (2 * kLimit)}, now);
        if (reserved) running.push_back(*reserved);
        ASSERT_LE(running.size(), 4U);
      } else if (!running.empty()) {
        const uint64_t reserved = running.back();
        running.pop_back();
        const uint64_t used = reserved == 0 ? 0 : random() % (reserved + 1);
        limits.end("a", reserved, used, now);
        spent += static_cast<double>(used);
      }
      const double minutes = std::chrono::duration<double>(now - kStart).count() / 60;
      ASSERT_LE(spent, kLimit * (minutes + 1) + 1);
    }
    for (const uint64_t reserved : running) limits.end("a", reserved, 0, now);
    EXPECT_EQ(header(limits.headers("a", now + 1min), "x-ratelimit-remaining-tokens"), "1000");
  }
}

}  // namespace
}  // namespace lockstep
