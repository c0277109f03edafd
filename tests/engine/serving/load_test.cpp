// Tests latencies with targets and without, under simulated load (load_simulation.h).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/serving/load_simulation.h"

namespace lockstep {
namespace {

constexpr LatencyTargets kNoTargets = {};
constexpr LatencyTargets kTargets = {2, 0.5};  // the defaults
constexpr uint64_t kSeeds = 3;
constexpr double kSeconds = 300;

FeltLoad load(const LatencyTargets& targets, const std::vector<SimulatedClients>& clients,
              uint64_t seed, const SimulatedMachine& machine = {}) {
  return LoadSimulation(targets, clients, seed, machine).run(kSeconds);
}

std::string described(const FeltLoad& load, size_t kind = 0) {
  const Felt& felt = load.by_kind[kind];
  return fmt::format(
      "{:.1f} tokens/s; first token p50 {:.2f} s, p99 {:.2f} s; between p50 {:.3f} s, p99 {:.3f} "
      "s, "
      "longest {:.3f} s",
      load.tokens_per_second, felt.first(0.5), felt.first(0.99), felt.gap(0.5), felt.gap(0.99),
      felt.gap(1));
}

// Without targets and with them.
struct LoadPair {
  FeltLoad before;
  FeltLoad after;
};

LoadPair pair(const std::vector<SimulatedClients>& clients, uint64_t seed) {
  return {load(kNoTargets, clients, seed), load(kTargets, clients, seed)};
}

class LoadTest : public testing::Test {
 protected:
  // For those who look at the figures.
  void record(const std::string& name, const FeltLoad& load, size_t kind = 0) {
    RecordProperty(name, described(load, kind));
  }
};

// Passes vary by a tenth, and what they take is not known better than that.
constexpr double kMostGap = 1.25 * kTargets.token;

TEST_F(LoadTest, few_clients_feel_what_they_felt) {
  for (const size_t clients : {1U, 8U}) {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const auto [before, after] = pair({{.count = clients}}, seed);
      record(fmt::format("before_{}_{}", clients, seed), before);
      record(fmt::format("after_{}_{}", clients, seed), after);
      SCOPED_TRACE(fmt::format("{} clients, seed {}: {}; with targets {}", clients, seed,
                               described(before), described(after)));
      EXPECT_LT(after.by_kind[0].first(0.5), 1.1 * before.by_kind[0].first(0.5));
      EXPECT_LT(after.by_kind[0].first(0.99), 1.3 * before.by_kind[0].first(0.99));
      EXPECT_GT(after.tokens_per_second, 0.98 * before.tokens_per_second);
      EXPECT_LT(after.by_kind[0].gap(1), kMostGap);
    }
  }
}

TEST_F(LoadTest, many_clients_get_their_first_tokens_far_sooner_and_more_tokens) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto [before, after] = pair({{.count = 32}}, seed);
    record(fmt::format("before_{}", seed), before);
    record(fmt::format("after_{}", seed), after);
    SCOPED_TRACE(
        fmt::format("seed {}: {}; with targets {}", seed, described(before), described(after)));
    EXPECT_LT(after.by_kind[0].first(0.5), 0.25 * before.by_kind[0].first(0.5));
    EXPECT_LT(after.by_kind[0].first(0.99), 0.25 * before.by_kind[0].first(0.99));
    EXPECT_GT(after.tokens_per_second, 1.05 * before.tokens_per_second);
    EXPECT_LT(after.by_kind[0].gap(1), kMostGap);
  }
}

// Four times as many as the machine can serve in time.
TEST_F(LoadTest, a_crowd_loses_nothing) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto [before, after] = pair({{.count = 128}}, seed);
    record(fmt::format("before_{}", seed), before);
    record(fmt::format("after_{}", seed), after);
    SCOPED_TRACE(
        fmt::format("seed {}: {}; with targets {}", seed, described(before), described(after)));
    EXPECT_LT(after.by_kind[0].first(0.5), 0.8 * before.by_kind[0].first(0.5));
    EXPECT_LT(after.by_kind[0].first(0.99), before.by_kind[0].first(0.99));
    EXPECT_GT(after.tokens_per_second, 1.05 * before.tokens_per_second);
    EXPECT_LT(after.by_kind[0].gap(1), kMostGap);
  }
}

// Takes 9 s by itself, and never ends before a short one that comes soon after it.
TEST_F(LoadTest, short_prompts_do_not_starve_a_long_one_of_their_tenant) {
  const SimulatedMachine machine;
  const SimulatedClients long_ones = {.prompt = 1'500, .shared = 0, .generated = 16};
  const double own_seconds = machine.costs.prompt_token * prompt_work(0, long_ones.prompt);
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto [before, after] = pair({{.count = 31}, long_ones}, seed);
    record(fmt::format("short_before_{}", seed), before);
    record(fmt::format("short_after_{}", seed), after);
    record(fmt::format("long_before_{}", seed), before, 1);
    record(fmt::format("long_after_{}", seed), after, 1);
    SCOPED_TRACE(
        fmt::format("seed {}: short {}; long {}", seed, described(after), described(after, 1)));
    EXPECT_FALSE(after.by_kind[1].first_tokens.empty());
    EXPECT_LT(after.by_kind[1].first(1), (kOvertaking + 4) * own_seconds);
    EXPECT_LT(after.by_kind[0].first(0.5), 0.5 * before.by_kind[0].first(0.5));
    EXPECT_LT(after.by_kind[1].gap(1), kMostGap);
  }
}

TEST_F(LoadTest, a_tenant_with_many_does_not_starve_a_tenant_with_one) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto after = load(kTargets, {{.count = 63, .tenant = "many"}, {.tenant = "one"}}, seed);
    record(fmt::format("many_{}", seed), after);
    record(fmt::format("one_{}", seed), after, 1);
    SCOPED_TRACE(
        fmt::format("seed {}: many {}; one {}", seed, described(after), described(after, 1)));
    EXPECT_LT(after.by_kind[1].first(0.99), 2 * kTargets.first_token);
    EXPECT_LT(after.by_kind[1].first(0.99), 0.2 * after.by_kind[0].first(0.5));
  }
}

// However short the prompts of the other are.
TEST_F(LoadTest, short_prompts_of_many_do_not_starve_another_tenants_long_one) {
  const SimulatedMachine machine;
  const SimulatedClients long_ones = {
      .tenant = "one", .prompt = 1'500, .shared = 0, .generated = 16};
  const double own_seconds = machine.costs.prompt_token * prompt_work(0, long_ones.prompt);
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto after = load(
        kTargets, {{.count = 63, .tenant = "many", .prompt = 60, .shared = 0}, long_ones}, seed);
    record(fmt::format("many_{}", seed), after);
    record(fmt::format("one_{}", seed), after, 1);
    SCOPED_TRACE(
        fmt::format("seed {}: many {}; one {}", seed, described(after), described(after, 1)));
    EXPECT_LT(after.by_kind[1].first(1), 4 * own_seconds);
  }
}

// If even the smallest chunk takes longer than a stream should wait, passes are as short as
// they were without targets.
TEST_F(LoadTest, a_slow_machine_computes_the_smallest_chunks) {
  const SimulatedMachine slow = {.costs = linear_costs(0.6, 0.2, 0.04, 0.05)};
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto before = load(kNoTargets, {{.count = 4}}, seed, slow);
    const auto after = load(kTargets, {{.count = 4}}, seed, slow);
    SCOPED_TRACE(
        fmt::format("seed {}: {}; with targets {}", seed, described(before), described(after)));
    EXPECT_LT(after.by_kind[0].gap(0.99), 1.1 * before.by_kind[0].gap(0.99));
    EXPECT_LT(after.by_kind[0].first(0.99), 1.1 * before.by_kind[0].first(0.99));
    EXPECT_GT(after.tokens_per_second, 0.95 * before.tokens_per_second);
  }
}

// The machine is thirty times as fast. First tokens meet their target as they are, so the targets
// delay none of them.
TEST_F(LoadTest, a_fast_machine_is_no_slower_to_answer) {
  const SimulatedMachine fast = {.costs = linear_costs(0.001, 0.0004, 0.00012, 0.0001)};
  for (const size_t clients : {1U, 32U}) {
    const auto before = load(kNoTargets, {{.count = clients}}, 1, fast);
    const auto after = load(kTargets, {{.count = clients}}, 1, fast);
    record(fmt::format("before_{}", clients), before);
    record(fmt::format("after_{}", clients), after);
    SCOPED_TRACE(fmt::format("{} clients: {}; with targets {}", clients, described(before),
                             described(after)));
    EXPECT_LT(after.by_kind[0].first(0.5), 1.1 * before.by_kind[0].first(0.5));
    EXPECT_LT(after.by_kind[0].first(0.99), 1.1 * before.by_kind[0].first(0.99));
    EXPECT_GT(after.tokens_per_second, 0.98 * before.tokens_per_second);
  }
}

}  // namespace
}  // namespace lockstep
