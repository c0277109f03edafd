// The endpoints for OpenAI's clients.
#pragma once

#include "server/api/common/call.h"

namespace lockstep {

ApiResult<void> post_completions(Call& call);
ApiResult<void> post_chat_completions(Call& call);
ApiResult<void> post_embeddings(Call& call);
ApiResult<void> post_responses(Call& call);
ApiResult<void> get_models(Call& call);
ApiResult<void> get_model(Call& call);

}  // namespace lockstep
