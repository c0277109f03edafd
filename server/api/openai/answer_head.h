// The members that all parts of an answer of /v1/completions and /v1/chat/completions share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/json_text.h"
#include "server/api/common/answer_usage.h"
#include "server/api/common/served_model.h"

namespace lockstep {

struct AnswerHead {
  std::string id;
  std::string object;        // of a whole answer: "chat.completion"
  std::string chunk_object;  // of an event: "chat.completion.chunk"
  int64_t created_seconds = 0;
  std::string model;  // as the request named it
  std::string fingerprint;
};

// The head of an answer that starts now.
AnswerHead answer_head(const ServedModel& model, std::string_view id_prefix, std::string object,
                       std::string chunk_object, std::string model_name);

// An answer, or a chunk of one, with these choices; `object`: one of the head's two.
Json choices_object(const AnswerHead& head, const std::string& object, Json choices);

// {"prompt_tokens":…,"completion_tokens":…,"total_tokens":…,…}.
Json usage_object(const AnswerUsage& usage);

}  // namespace lockstep
