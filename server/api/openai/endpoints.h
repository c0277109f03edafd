// The endpoints for OpenAI's clients, and their errors.
#pragma once

#include <optional>
#include <string>

#include "engine/base/json.h"
#include "server/api/common/api_error.h"
#include "server/api/common/call.h"

namespace lockstep {

ApiResult<void> post_completions(Call& call);
ApiResult<void> post_chat_completions(Call& call);
// The token ids that the endpoints of the same names would compute, of the same bodies and with the
// same errors; computes nothing.
ApiResult<void> post_completions_render(Call& call);
ApiResult<void> post_chat_completions_render(Call& call);
ApiResult<void> post_embeddings(Call& call);
ApiResult<void> post_rerank(Call& call);
ApiResult<void> post_responses(Call& call);
ApiResult<void> get_models(Call& call);
ApiResult<void> get_model(Call& call);

// An error in OpenAI's words: {"error":{"message","type","param","code"}}.
inline Json error_object(const ApiError& error) {
  const auto text_or_null = [](const std::optional<std::string>& text) {
    return text ? Json(*text) : Json(nullptr);
  };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", text_or_null(error.parameter)},
            {"code", text_or_null(error.code)}}}};
}

}  // namespace lockstep
