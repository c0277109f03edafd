// The table of routes: which endpoint answers where.
#pragma once

#include <vector>

#include "server/api/common/served_model.h"
#include "server/http/http_route.h"
#include "server/metrics/metrics.h"

namespace lockstep {

// Both must outlive the server. `metrics` may be null: then there is no /metrics.
std::vector<HttpRoute> make_routes(ServedModel& model, const Metrics* metrics);

}  // namespace lockstep
