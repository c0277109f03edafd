// The endpoints for Anthropic's clients.
#pragma once

#include "server/api/common/call.h"

namespace lockstep {

ApiResult<void> post_messages(Call& call);
ApiResult<void> post_count_tokens(Call& call);

}  // namespace lockstep
