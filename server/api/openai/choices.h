// The answers of /v1/completions and /v1/chat/completions, whole and streamed; a format of its own
// for each of the two gives the words of their choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/engine.h"
#include "server/api/common/answer.h"
#include "server/api/common/answer_writer.h"
#include "server/api/common/served_model.h"

namespace lockstep {

// The members that all parts of an answer of /v1/completions and /v1/chat/completions share.
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

// The JSON texts, prompt by prompt, that tell what would be computed for a plan:
// {"request_id":…,"token_ids":[…],"features":null}, as vLLM's renderers have them. Fails as the
// engine would for a request that can never be served; asks it for nothing else.
ApiResult<std::vector<std::string>> render_prompts(const ServedModel& model, const AnswerPlan& plan,
                                                   std::string_view id_prefix);

// Belongs to one HTTP request.
class ChoiceFormat {
 public:
  virtual ~ChoiceFormat() = default;

  // The choice before anything is generated, for a stream; null for none.
  virtual Json opening(size_t index) = 0;
  // The choices (in the JSON sense) that one output makes in a stream; may be none.
  virtual std::vector<Json> chunks(size_t index, const Output& output) = 0;
  // The choice that all outputs of a request make together.
  virtual Json choice(size_t index, const Output& whole) = 0;
};

// The whole answers of /v1/completions and /v1/chat/completions.
class ChoicesBody final : public BodyWriter {
 public:
  // The format must outlive this.
  ChoicesBody(AnswerHead head, ChoiceFormat& format) : head_(std::move(head)), format_(format) {}

  std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  AnswerHead head_;
  ChoiceFormat& format_;
};

// The streams of /v1/completions and /v1/chat/completions: chunks, each with one choice.
class ChoicesStream final : public StreamWriter {
 public:
  // `choices`: of all prompts together. The format must outlive this.
  ChoicesStream(AnswerHead head, ChoiceFormat& format, size_t choices, bool include_usage);

  std::string opening(const AnswerUsage& usage) override;
  std::string news(size_t index, const Output& output) override;
  std::string ending(const AnswerUsage& usage) override;
  std::string failure(const ApiError& error) override;
  std::string keep_alive() override { return std::string(kKeepAliveComment); }

 private:
  std::string chunk(const Json& choice) const;

  AnswerHead head_;
  ChoiceFormat& format_;
  size_t choices_;
  bool include_usage_;
};

}  // namespace lockstep
