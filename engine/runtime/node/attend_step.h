// Attention's share of one worker: heads prepared, keys and values appended, queries answered.
#pragma once

#include "engine/graph/plan.h"
#include "engine/runtime/node/pass.h"

namespace lockstep {

// If every sequence has one token, no worker waits: the one that takes the block with a token's own
// position appends its key and value, and the one that computes a sequence's last chunk merges the
// chunks. Otherwise the workers meet once in between.
void run_attention(const AttendStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
