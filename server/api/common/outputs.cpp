#include "server/api/common/outputs.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep {

void append_output(Output& whole, Output&& next) {
  std::ranges::move(next.prompt, std::back_inserter(whole.prompt));
  std::ranges::move(next.tokens, std::back_inserter(whole.tokens));
  whole.text += next.text;
  whole.finish = next.finish;
  whole.stop = std::move(next.stop);
  whole.error = std::move(next.error);
  whole.embedding = std::move(next.embedding);
  whole.scores = std::move(next.scores);
  whole.prompt_tokens = next.prompt_tokens;
  whole.cached_tokens = next.cached_tokens;
  whole.generated_tokens = next.generated_tokens;
  whole.queue_seconds = next.queue_seconds;
}

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kDisplaced:
      return "displaced";
    case FinishReason::kInvalidRequest:
      return "invalid_request";
  }
  return "";
}

Json finish_reason(const Output& output) {
  if (!output.finish) return nullptr;
  return finish_name(*output.finish);
}

}  // namespace lockstep
