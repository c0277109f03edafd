// The program's commands. Each takes the arguments after its name and returns the exit code: 0, 2
// for what was given, 1 for what the machine refuses.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace lockstep {

int run_serve(const std::vector<std::string>& arguments);
int run_generate(const std::vector<std::string>& arguments);
int run_bench(const std::vector<std::string>& arguments);
int run_evaluate(const std::vector<std::string>& arguments);
int run_check_health(const std::vector<std::string>& arguments);
int run_bench_machine(const std::vector<std::string>& arguments);
int run_plan(const std::vector<std::string>& arguments);
int run_inspect(const std::vector<std::string>& arguments);
int run_simulate(const std::vector<std::string>& arguments);
int run_hash_key(const std::vector<std::string>& arguments);

// A machine's plan as JSON, which `lockstepd plan --json` prints: indented, without a newline at
// its end. `users`: users_json() of what was asked, or null.
// `lockstepd plan` of several hosts, as text or JSON; the exit code.
int print_hosts_plan(const EngineOptions& options, bool json);
std::string plan_json(const MachinePlan& plan, const Json& users = Json());

}  // namespace lockstep
