// Attention's share of one worker: heads prepared, keys and values appended, queries answered.
#pragma once

#include "engine/graph/plan.h"
#include "engine/runtime/node/pass.h"

namespace lockstep {

// Where every sequence has one token, nothing is waited for: whoever takes the block with a token's
// own position appends its key and value, and of a sequence cut into chunks the last one to have
// computed its chunk merges them. Otherwise the workers meet once in between.
void run_attention(const AttendStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
