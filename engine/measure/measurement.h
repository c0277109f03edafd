// Raw speed of an executor: passes over simulated tokens, timed.
#pragma once

#include <vector>

#include "engine/interface/logit_source.h"
#include "engine/interface/measurements.h"
#include "engine/measure/model_work.h"
#include "engine/measure/pass_runner.h"
#include "engine/runtime/executor.h"

namespace lockstep {

// Uses the KV pages from the first on; nothing else may be running. Fails with kInvalidInput when
// the case does not fit the plan. Where passes begin small (pass_runner.h), the prompt is computed
// over and over before it is measured, as long as that takes fewer passes.
Result<std::vector<Measurement>> run_measurement(Executor& executor, const Plan& plan,
                                                 const ModelWork& work,
                                                 const MeasurementCase& measurement,
                                                 const PassClock& clock = steady_seconds);

// Engine::compute_logits() behind its checks of the tokens; the same holds.
Result<void> run_logits(Executor& executor, const Plan& plan, const LogitsCase& wanted,
                        const UseLogits& use);

}  // namespace lockstep
