#include "server/commands/plan_users.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <numeric>

#include "server/commands/simulated_load.h"

namespace lockstep {
namespace {

constexpr double kSkippedPart = 1.0 / 6;  // of the simulated time, in which the fleet fills

double mean_part(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

size_t tokens_of(const SimulatedRequest& request) {
  return request.prompt_tokens + request.answer_tokens;
}

std::string_view machines_text(size_t count) {
  return count == 1 ? "machine" : "machines";
}

}  // namespace

void add_users_options(CLI::App& app, UsersOptions& options) {
  CLI::Option* const costs =
      app.add_option("--costs", options.costs,
                     "With --users: what passes cost on this machine, the output of `lockstepd "
                     "bench --json` as `lockstepd simulate` takes it")
          ->type_name("FILE");
  CLI::Option* const users =
      app.add_option("--users", options.users,
                     "Shows as well how many machines like this one so many users take, by "
                     "simulation (lockstepd simulate shows more of it)")
          ->check(CLI::Range(1U, 10'000'000U))
          ->needs(costs);
  const auto add = [&](const char* name, auto& value, const char* help, double least, double most) {
    app.add_option(name, value, help)->check(CLI::Range(least, most))->needs(users);
  };
  add("--user-seconds", options.user_seconds,
      "Seconds from one request of a user to the next one, in the mean [60]", 1e-3, 1e6);
  app.add_option("--prompt", options.prompt, "Tokens of a prompt, or between two numbers [260]")
      ->type_name("N[-N]")
      ->needs(users);
  app.add_option("--answer", options.answer, "Tokens of an answer, likewise [48]")
      ->type_name("N[-N]")
      ->needs(users);
  add("--seconds", options.seconds,
      "Seconds that are simulated; the first sixth is not counted [120]", 1, 1e6);
  add("--first-limit", options.first_token_limit,
      "A good request's first token comes within so many seconds [2]", 0, 1e6);
  add("--token-limit", options.token_limit,
      "and its others within so many of one another, in the mean [0.5]", 0, 1e6);
  add("--good", options.good_part, "The part of the requests that are to be good [0.99]", 0, 1);
  app.add_option("--seed", options.seed, "Of the simulated requests [1]")->needs(users);
}

Result<UsersPlan> plan_users(const UsersOptions& options, const EngineOptions& engine,
                             const MachinePlan& machine) {
  const auto file = read_costs(options.costs);
  if (!file) return std::unexpected(file.error());
  UsersPlan plan{.requests_per_second = static_cast<double>(options.users) / options.user_seconds,
                 .costs_deviation = file->deviation};
  const auto load = make_load({.requests_per_second = plan.requests_per_second,
                               .seconds = options.seconds,
                               .seed = options.seed},
                              options.prompt, options.answer);
  if (!load) return std::unexpected(load.error());
  const double skipped_seconds = options.seconds * kSkippedPart;
  if (load->empty() || load->back().arrival < skipped_seconds) {
    return invalid_input("no request of {} users comes in {} seconds: raise --seconds",
                         options.users, options.seconds);
  }
  const auto longest = std::ranges::max(*load, {}, &tokens_of);
  if (tokens_of(longest) > machine.context_tokens) {
    return invalid_input(
        "--prompt {} and --answer {}: a request comes to {} tokens, but a sequence has {} at most: "
        "raise --context",
        options.prompt, options.answer, tokens_of(longest), machine.context_tokens);
  }
  FleetOptions fleet{.replica = replica_options(engine, file->batch_tokens, machine.context_tokens),
                     .costs = file->costs,
                     .first_token_limit = options.first_token_limit,
                     .token_limit = options.token_limit,
                     .skipped_seconds = skipped_seconds,
                     .seed = options.seed};
  fleet.replica.sequences = machine.sequence_count;
  const auto fewest = fewest_replicas(fleet, *load, options.good_part);
  if (!fewest) return invalid_input("--users: {}", fewest.error().message);
  plan.machines = fleet.replicas = *fewest;
  const FleetReport report = simulate_fleet(fleet, *load);
  plan.requests = report.requests;
  plan.good_part = report.good_part();
  plan.first_token_seconds_p99 = percentile(report.first_tokens, 0.99);
  plan.busy_part = mean_part(report.busy);
  if (fleet.replicas > 1) {
    --fleet.replicas;
    plan.good_part_with_one_less = simulate_fleet(fleet, *load).good_part();
  }
  return plan;
}

void print_users(const UsersOptions& options, const UsersPlan& plan) {
  std::cout << fmt::format(
      "\n{} users, a request of each in {:g} s: {:.2f} per second, of {} tokens, answered with "
      "{}\n",
      options.users, options.user_seconds, plan.requests_per_second, options.prompt,
      options.answer);
  std::cout << fmt::format(
      "  {} {} like this one: {:.1f} % of {} simulated requests are good (the first token within "
      "{:g} s, the others within {:g} s of one another)\n",
      plan.machines, machines_text(plan.machines), plan.good_part * 100, plan.requests,
      options.first_token_limit, options.token_limit);
  std::cout << fmt::format(
      "  99 of 100 first tokens within {:.3f} s; they compute {:.0f} % of the time\n",
      plan.first_token_seconds_p99, plan.busy_part * 100);
  if (plan.good_part_with_one_less) {
    std::cout << fmt::format("  with {} {}: {:.1f} %\n", plan.machines - 1,
                             machines_text(plan.machines - 1), *plan.good_part_with_one_less * 100);
  }
}

Json users_json(const UsersOptions& options, const UsersPlan& plan) {
  Json body = {{"users", options.users},
               {"requests_per_second", plan.requests_per_second},
               {"requests", plan.requests},
               {"machines", plan.machines},
               {"good_part", plan.good_part},
               {"good_part_with_one_less", nullptr},
               {"first_token_seconds_p99", plan.first_token_seconds_p99},
               {"busy_part", plan.busy_part},
               {"costs_deviation", plan.costs_deviation}};
  if (plan.good_part_with_one_less) {
    body["good_part_with_one_less"] = *plan.good_part_with_one_less;
  }
  return body;
}

}  // namespace lockstep
