// Under which reason the refusal of a request is counted.
#pragma once

#include "server/http/http_counters.h"

namespace lockstep {

HttpRejection rejection_of_status(int status);

}  // namespace lockstep
