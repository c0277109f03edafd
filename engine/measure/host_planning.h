// Plans a model's place on several hosts before anything is loaded: `lockstepd plan --hosts`, which
// runs on all of them at the same time.
#pragma once

#include "engine/base/result.h"
#include "engine/interface/hosts_plan.h"
#include "engine/interface/options.h"

namespace lockstep {

struct Machine;

// Forms the group, agrees on ranks and context as a load would, and measures memory and links (some
// seconds, and only right on idle hosts and an idle network). Every host gets the same plan. Of the
// model only the headers are read. Fails as HostGroup::form() and the agreement do; a host without
// space for its part fails all, by name.
Result<HostsPlan> plan_hosts(const EngineOptions& options);
// The same of a given machine.
Result<HostsPlan> plan_hosts(const EngineOptions& options, const Machine& machine);

}  // namespace lockstep
