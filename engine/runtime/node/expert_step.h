// The steps of a mixture of experts.
#pragma once

#include "engine/graph/plan.h"
#include "engine/runtime/node/pass.h"
#include "engine/runtime/node/task_counter.h"

namespace lockstep {

// Chooses each token's experts with the largest scores (of equal ones the first) and takes the
// softmax of their scores. Scores that are not finite choose experts as well, with weights that are
// not finite either: only their token is affected.
void run_route(const RouteStep& step, const Pass& pass);

// Products of few tokens are shared statically by weight, those of more by tasks; neither changes
// the bits: every row is computed by itself, and the rows of a token are added in the order of the
// experts.
void run_expert_gate(const ExpertGateStep& step, const Pass& pass, TaskCounter& tasks);
void run_expert_sum(const ExpertSumStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
