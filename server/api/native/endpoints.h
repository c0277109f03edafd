// The endpoints that belong to no dialect: about texts and tokens, and about the server itself.
#pragma once

#include "server/api/common/call.h"

namespace lockstep {

ApiResult<void> post_tokenize(Call& call);
ApiResult<void> post_detokenize(Call& call);
ApiResult<void> get_tokenizer_info(Call& call);
ApiResult<void> post_apply_template(Call& call);
ApiResult<void> get_slots(Call& call);
ApiResult<void> post_slot(Call& call);
ApiResult<void> get_openapi(Call& call);
ApiResult<void> get_version(Call& call);
ApiResult<void> get_live(Call& call);
ApiResult<void> get_ready(Call& call);

}  // namespace lockstep
