// How many machines like the planned one so many users take: the part of `lockstepd plan` that
// simulates a fleet, with the costs of passes that `bench --json` has measured on such a machine.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/base/json.h"
#include "engine/engine.h"

namespace lockstep {

struct UsersOptions {
  size_t users = 0;  // 0: nothing is asked
  std::filesystem::path costs;
  double user_seconds = 60;  // from one request of a user to the next one, in the mean
  std::string prompt = "260";
  std::string answer = "48";
  double seconds = 120;  // that are simulated; the first sixth is not counted
  double first_token_limit = 2;
  double token_limit = 0.5;
  double good_part = 0.99;
  uint64_t seed = 1;
};

struct UsersPlan {
  double requests_per_second = 0;                      // of all users
  size_t requests = 0;                                 // that were simulated and counted
  size_t machines = 0;                                 // the fewest that suffice
  double good_part = 0;                                // of the requests, with them
  std::optional<double> good_part_with_one_less = {};  // none: one machine suffices
  double first_token_seconds_p99 = 0;
  double busy_part = 0;        // of the machines' time, in the mean
  double costs_deviation = 0;  // CostsFile::deviation
};

void add_users_options(CLI::App& app, UsersOptions& options);

// kInvalidInput names the option: of costs that cannot be used, and where no number suffices.
Result<UsersPlan> plan_users(const UsersOptions& options, const EngineOptions& engine,
                             const MachinePlan& machine);

void print_users(const UsersOptions& options, const UsersPlan& plan);
Json users_json(const UsersOptions& options, const UsersPlan& plan);

}  // namespace lockstep
