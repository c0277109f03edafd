// Raw speed of an executor: passes over made-up tokens, timed.
#pragma once

#include "engine/engine.h"
#include "engine/runtime/executor.h"

namespace lockstep {

// Uses the KV pages from the first on; nothing else may be running. Fails with kInvalidInput when
// the case does not fit the plan.
Result<Measurement> run_measurement(Executor& executor, const Plan& plan,
                                    const MeasurementCase& measurement);

}  // namespace lockstep
