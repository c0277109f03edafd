// One worker's share of each kind of step. How work is shared never changes a result: every output
// element is computed in the kernels' fixed order, whole by one worker, or, where a long sequence's
// keys are cut into chunks, in parts that one worker merges in order.
#pragma once

#include "engine/graph/plan.h"
#include "engine/pass/pass.h"

namespace lockstep {

// Any step, by its kind (step_runner.cpp); each of the others is in the file of its name. No
// allocation, lock or system call. `tasks` starts at 0, shared by the workers of the rank.
void run_step(const StepWork& step, const Pass& pass, TaskCounter& tasks);

// The exchange of a step of all ranks, by the one worker of a rank whose GPU has computed it: sums,
// and rows of which other ranks have copies. Both lie in the host's memory.
void exchange_step(const StepWork& step, const Pass& pass, TaskCounter& tasks);

// A product: which panels for which rows, and what follows on them. Few rows: every worker computes
// the same panels in every pass, so that a weight is always read by the worker that read it before.
// Many: panels and rows are cut into tasks that are dealt out.
void run_product(const MatmulStep& step, const Pass& pass, TaskCounter& tasks);

// Attention: heads prepared, keys and values appended, queries answered. If every sequence has one
// token, no worker waits: the one that takes the block with a token's own
// position appends its key and value, and the one that computes a sequence's last chunk merges the
// chunks. Otherwise the workers meet once in between.
void run_attention(const AttendStep& step, const Pass& pass, TaskCounter& tasks);

// Chooses each token's experts and their weights (Gating). Scores that are not finite choose
// experts as well; what a token's experts then give is not finite either, and only their token is
// affected.
void run_route(const RouteStep& step, const Pass& pass);

// Products of few tokens are shared statically by weight, those of more by tasks; neither changes
// the bits: every row is computed by itself, and the rows of a token are added in the order of the
// experts.
void run_expert_product(const ExpertProductStep& step, const Pass& pass, TaskCounter& tasks);
void run_expert_gate(const ExpertGateStep& step, const Pass& pass, TaskCounter& tasks);
void run_expert_sum(const ExpertSumStep& step, const Pass& pass, TaskCounter& tasks);

// The plain steps, by rows and chunks of columns or heads.
void run_elementwise(const ElementwiseStep& step, const Pass& pass);
void run_heads(const HeadsStep& step, const Pass& pass);
void run_copy_heads(const CopyHeadsStep& step, const Pass& pass);
void run_norm_sums(const NormSumsStep& step, const Pass& pass);
void run_norm_scale(const NormScaleStep& step, const Pass& pass);

}  // namespace lockstep
