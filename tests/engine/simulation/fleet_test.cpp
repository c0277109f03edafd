// Tests what clients of simulated replicas see.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/scheduler/pass_cost.h"
#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

constexpr double kPass = 0.02;
constexpr double kPromptToken = 0.001;

FleetOptions fleet_options(size_t replicas = 1) {
  FleetOptions options;
  options.replicas = replicas;
  options.router = "least-waiting";
  options.costs = {.generation = {{1, kPass + 0.002}, {8, kPass + 8 * 0.002}},
                   .prompt_token = kPromptToken};
  options.replica.kv_pages = 512;
  return options;
}

SimulatedRequest request_at(double arrival, size_t prompt = 100, size_t answer = 11) {
  return {.arrival = arrival,
          .tenant = {},
          .prompt_tokens = prompt,
          .answer_tokens = answer,
          .prefix = {},
          .conversation = {}};
}

TEST(Fleet, a_request_alone_takes_what_its_passes_cost) {
  const std::vector<SimulatedRequest> requests = {request_at(3)};
  const FleetReport report = simulate_fleet(fleet_options(), requests);
  ASSERT_EQ(report.first_tokens.size(), 1U);
  // The daemon's first chunks are small, so it is more than one pass, and of four at most.
  const double work = kPromptToken * 100;
  EXPECT_GE(report.first_tokens[0], kPass + work - 1e-9);
  EXPECT_LE(report.first_tokens[0], 4 * kPass + work + 1e-9);
  ASSERT_EQ(report.mean_gaps.size(), 1U);
  EXPECT_NEAR(report.mean_gaps[0], kPass + 0.002, 1e-9);
  EXPECT_NEAR(report.longest_gaps[0], kPass + 0.002, 1e-9);
  EXPECT_NEAR(report.seconds, report.first_tokens[0] + 10 * 0.022, 1e-9);
  EXPECT_EQ(report.answer_tokens, 11);
  EXPECT_EQ(report.good, 1U);
  EXPECT_NEAR(report.busy[0], report.seconds / (3 + report.seconds), 1e-9);
}

TEST(Fleet, a_request_that_comes_during_a_pass_waits_for_its_end) {
  const std::vector<SimulatedRequest> requests = {request_at(0, 32), request_at(0.001, 32)};
  const FleetReport report = simulate_fleet(fleet_options(), requests);
  ASSERT_EQ(report.first_tokens.size(), 2U);
  const double first_pass = kPass + kPromptToken * 32;
  EXPECT_NEAR(report.first_tokens[0], first_pass, 1e-9);
  EXPECT_NEAR(report.first_tokens[1], first_pass - 0.001 + first_pass + 0.002, 1e-9);
}

// By the metrics of one look the least loaded replica is the same one until the next.
TEST(Fleet, a_router_that_counts_what_it_sends_does_not_wait_for_a_look) {
  constexpr size_t kReplicas = 10;
  std::vector<SimulatedRequest> requests(3 * kReplicas, request_at(0, 63, 50));  // as drawn
  for (size_t number = 0; number < 5 * kReplicas; ++number) {
    requests.push_back(request_at(0.6 + 1e-4 * static_cast<double>(number), 63));
  }
  const auto longest = [&](const std::string& router) {
    FleetOptions options = fleet_options(kReplicas);
    options.router = router;
    options.router_seconds = 0.5;
    return std::ranges::max(simulate_fleet(options, requests).first_tokens);
  };
  EXPECT_LT(2 * longest("prefix-active"), longest("least-waiting"));
}

TEST(Fleet, requests_without_a_place_in_the_queue_are_refused) {
  FleetOptions options = fleet_options();
  options.replica.sequences = 1;
  options.replica.waiting_requests = 2;
  const std::vector<SimulatedRequest> requests(5, request_at(0));
  const FleetReport report = simulate_fleet(options, requests);
  EXPECT_EQ(report.requests, 5U);
  EXPECT_EQ(report.refused, 2U);
  EXPECT_EQ(report.first_tokens.size(), 3U);
  EXPECT_EQ(report.good, 3U);
}

TEST(Fleet, an_answer_gives_its_place_back) {
  FleetOptions options = fleet_options();
  options.replica.sequences = 1;
  options.replica.waiting_requests = 0;
  const std::vector<SimulatedRequest> requests = {request_at(0), request_at(0.1), request_at(5),
                                                  request_at(10)};
  const FleetReport report = simulate_fleet(options, requests);
  EXPECT_EQ(report.refused, 1U) << "the one that came during an answer";
  EXPECT_EQ(report.first_tokens.size(), 3U);
}

TEST(Fleet, another_tenants_request_displaces_one_that_waits) {
  FleetOptions options = fleet_options();
  options.replica.sequences = 1;
  options.replica.waiting_requests = 3;
  std::vector<SimulatedRequest> requests(4, request_at(0));
  for (SimulatedRequest& request : requests) request.tenant = "many";
  requests.push_back(request_at(0.001));
  requests.back().tenant = "one";
  const FleetReport report = simulate_fleet(options, requests);
  EXPECT_EQ(report.requests, 5U);
  EXPECT_EQ(report.refused, 1U);
  EXPECT_EQ(report.first_tokens.size(), 4U);
}

TEST(Fleet, a_request_that_never_fits_is_refused) {
  FleetOptions options = fleet_options();
  options.replica.kv_pages = 4;
  const std::vector<SimulatedRequest> requests = {request_at(0, 246, 11), request_at(0, 245, 11)};
  EXPECT_EQ(simulate_fleet(options, requests).refused, 1U);
}

TEST(Fleet, two_replicas_serve_nearly_twice_as_much) {
  // More than even two can serve in time.
  const auto requests = make_arrivals({.requests_per_second = 40, .seconds = 60});
  const FleetReport one = simulate_fleet(fleet_options(1), requests);
  const FleetReport two = simulate_fleet(fleet_options(2), requests);
  const auto rate = [](const FleetReport& report) { return report.answer_tokens / report.seconds; };
  EXPECT_EQ(one.requests, requests.size());
  EXPECT_EQ(two.requests, requests.size());
  EXPECT_NEAR(rate(two) / rate(one), 2, 0.1);
  EXPECT_GT(one.busy[0], 0.99);
}

TEST(Fleet, shared_prefixes_are_found_where_they_were_sent) {
  const auto requests = make_arrivals({.requests_per_second = 4,
                                       .seconds = 60,
                                       .prompt = {700, 700},
                                       .answer = {8, 8},
                                       .prefix_tokens = 640,
                                       .prefix_count = 8});
  FleetOptions options = fleet_options(4);
  const auto found = [&](const char* router) {
    options.router = router;
    const FleetReport report = simulate_fleet(options, requests);
    return static_cast<double>(report.prompt_tokens_found) /
           static_cast<double>(report.prompt_tokens_asked);
  };
  // Each prefix is computed once here, and four times there.
  EXPECT_GT(found("prefix"), found("round-robin") + 0.05);
}

TEST(Fleet, the_turns_of_a_conversation_find_what_came_before) {
  std::vector<SimulatedRequest> requests;
  for (size_t turn = 0; turn < 5; ++turn) {
    requests.push_back(request_at(static_cast<double>(10 * turn), 200 * (turn + 1), 100));
    requests.back().conversation = "c";
  }
  const FleetReport report = simulate_fleet(fleet_options(), requests);
  // A turn's prompt begins with prompt and answer of the one before, of which full pages of 64 are
  // found: 256, 448, 640 and 896 of 3,000 tokens. An answer's last token is not computed.
  EXPECT_EQ(report.prompt_tokens_asked, 3'000U);
  EXPECT_EQ(report.prompt_tokens_found, 256U + 448U + 640U + 896U);
}

TEST(Fleet, requests_of_the_beginning_may_be_left_out) {
  FleetOptions options = fleet_options();
  options.skipped_seconds = 5;
  const std::vector<SimulatedRequest> requests = {request_at(0), request_at(6)};
  const FleetReport report = simulate_fleet(options, requests);
  EXPECT_EQ(report.requests, 1U);
  EXPECT_EQ(report.answer_tokens, 11);
  EXPECT_LT(report.seconds, 2);
}

TEST(Fleet, the_fewest_replicas_that_suffice_are_found) {
  const auto requests = make_arrivals({.requests_per_second = 20, .seconds = 60});
  FleetOptions options = fleet_options();
  options.token_limit = 0.2;
  const size_t needed = replicas_needed(options, requests, 0.99, 64);
  ASSERT_GT(needed, 1U);
  options.replicas = needed;
  EXPECT_GE(simulate_fleet(options, requests).good_part(), 0.99);
  options.replicas = needed - 1;
  EXPECT_LT(simulate_fleet(options, requests).good_part(), 0.99);
  EXPECT_EQ(replicas_needed(options, requests, 0.99, needed - 1), 0U);
}

TEST(Fleet, a_run_is_the_same_from_the_same_seed) {
  const auto requests = make_arrivals({.requests_per_second = 30, .seconds = 20});
  const FleetReport one = simulate_fleet(fleet_options(3), requests);
  const FleetReport two = simulate_fleet(fleet_options(3), requests);
  EXPECT_EQ(one.first_tokens, two.first_tokens);
  EXPECT_EQ(one.busy, two.busy);
}

TEST(Percentile, is_the_time_that_so_many_do_not_exceed) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({3, 1, 2}, 0), 1);
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({3, 1, 2}, 1), 3);
}

}  // namespace
}  // namespace lockstep
