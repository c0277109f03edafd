// Any step of a plan: those that the operations' folders define, as one closed type.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "engine/operations/attention/attend_step.h"
#include "engine/operations/convolution/convolution_step.h"
#include "engine/operations/delta_net/delta_net_step.h"
#include "engine/operations/elementwise/elementwise_step.h"
#include "engine/operations/embed/embed_step.h"
#include "engine/operations/experts/expert_steps.h"
#include "engine/operations/heads/heads_steps.h"
#include "engine/operations/matmul/matmul_step.h"
#include "engine/operations/mean/mean_step.h"
#include "engine/operations/norm/norm_steps.h"
#include "engine/operations/route/route_step.h"
#include "engine/operations/scan/scan_step.h"
#include "engine/operations/transfer/transfer_steps.h"

namespace lockstep {

// Each has a text, text_of(step), and a worker's share, run(step, pass, tasks). How work is shared
// never changes a result: every output element is computed in the kernels' fixed order, whole by
// one worker, or, where a long sequence's keys are cut into chunks, in parts that one worker merges
// in order.
using StepWork = std::variant<ClearPagesStep, CopyStatesStep, RotaryTableStep, EmbedStep, NormStep,
                              MatmulStep, RouteStep, ExpertGateStep, ExpertSumStep, AttendStep,
                              FormStep, AllReduceStep, HandOverStep, ElementwiseStep, HeadsStep,
                              CopyHeadsStep, NormSumsStep, NormScaleStep, ExpertProductStep,
                              ConvolutionStep, DeltaNetStep, ScanStep, MeanStep, GivenRowsStep>;

std::string step_text(const StepWork& step);

// One worker's share of the step. No allocation, lock or system call. `tasks` starts at 0, shared
// by the workers of the rank.
void run_step(const StepWork& step, const Pass& pass, TaskCounter& tasks);

// The exchange of a step of all ranks, by the one worker of a rank whose GPU has computed it: sums,
// and rows of which other ranks have copies. Both lie in the host's memory.
void exchange_step(const StepWork& step, const Pass& pass, TaskCounter& tasks);

// The scope of the barrier after a step.
enum class Meet : uint8_t { kRank, kAllRanks };

struct Step {
  StepWork work;
  Meet meet = Meet::kRank;

  friend bool operator==(const Step&, const Step&) = default;
};

}  // namespace lockstep
