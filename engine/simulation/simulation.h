// A simulation of daemons under load, by the scheduler that serves and on a virtual clock: the
// load, what passes cost, replicas behind a router, and what their clients see. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/interface/simulation.h"

namespace lockstep {

struct Schedule;

// A trace: a JSON object per line, with "arrival" (seconds) and "prompt" and "answer" (tokens), and
// if wanted "tenant", "prefix" with "prefix_tokens", and "conversation". Empty lines are skipped;
// the order is that of arrival. Fails with kInvalidInput, which names the line.
Result<std::vector<SimulatedRequest>> parse_trace(std::string_view text);

// "260" or "100-400", from 1 on; kInvalidInput names `option`.
Result<LengthRange> parse_length_range(std::string_view text, std::string_view option);

std::vector<SimulatedRequest> make_arrivals(const ArrivalProcess& process);

// The token at `position` of the prompt and answer of the request with this number.
int32_t token_at(const SimulatedRequest& request, size_t number, size_t position);

// The seconds of a pass of this schedule.
double pass_seconds(const PassCosts& costs, const Schedule& schedule);

// The costs that fit the rows best, by squares of relative deviations, none below 0.
// `batch_tokens`: of a pass at most, as the rows were measured. Fails with kInvalidInput where the
// rows cannot tell the parts from one another, and says which to measure. Without rows of two
// depths keys cost nothing, of prompts and of generated tokens each by itself.
Result<PassCosts> fit_pass_costs(std::span<const BenchRow> rows, size_t batch_tokens);

// The largest relative deviation of a row from what the costs say.
double worst_deviation(const PassCosts& costs, std::span<const BenchRow> rows, size_t batch_tokens);

// The names of routers (router.h).
std::span<const std::string_view> router_names();

// `part` (0 to 1) of the requests are at most as long.
double percentile(std::vector<double> times, double part);

FleetReport simulate_fleet(const FleetOptions& options, std::span<const SimulatedRequest> requests);

// The fewest replicas with which so large a part of the requests is good; 0: `most` do not suffice.
size_t replicas_needed(FleetOptions options, std::span<const SimulatedRequest> requests,
                       double good_part, size_t most);

}  // namespace lockstep
