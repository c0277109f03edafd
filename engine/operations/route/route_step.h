// The step of a routing: which experts each token goes to, and the order of the experts' rows.
#pragma once

#include <cstddef>
#include <string>

#include "engine/graph/graph.h"
#include "engine/graph/step_buffers.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// Work is shared by token; the rows are put in order by one worker.
struct RouteStep {
  ArenaOffset<const float> scores = {};  // [token][expert]; none: the rank has no experts
  size_t score_stride = 0;
  Routing routing;
  Gating gating = {};
  ArenaOffset<const float> bias = {};  // [expert], of the choice alone; or none

  friend bool operator==(const RouteStep&, const RouteStep&) = default;
};

std::string text_of(const RouteStep& step);

// Scores that are not finite choose experts as well; what a token's experts then give is not finite
// either, and only their token is affected.
void run(const RouteStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
