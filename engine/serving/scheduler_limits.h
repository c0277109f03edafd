// The numbers that the scheduler is told of a loaded model, its memory and the options.
#pragma once

#include "engine/base/cache_events.h"
#include "engine/interface/options.h"
#include "engine/model/architecture.h"
#include "engine/placement/model_layout.h"
#include "engine/placement/settings.h"
#include "engine/runtime/executor.h"
#include "engine/scheduler/scheduler.h"

namespace lockstep {

struct SchedulerSubject {
  const Model& model;
  const Settings& settings;
  const EngineOptions& options;
  const ModelLayout& layout;
  const Executor& executor;
  const Plan& plan;           // the first rank's
  CacheEvents* cache_events;  // null: nobody is told
};

// Says in the log what the numbers mean. A new secret for the prefix cache is in each.
SchedulerLimits scheduler_limits(const SchedulerSubject& of);

}  // namespace lockstep
