// Answers that consist of choices: those of /v1/completions and /v1/chat/completions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/common/answer.h"

namespace lockstep {

// What all parts of an answer start with.
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

// How an endpoint words its choices. Belongs to one HTTP request.
class ChoiceFormat {
 public:
  virtual ~ChoiceFormat() = default;

  // What a stream says of a choice before anything is generated; null for nothing.
  virtual Json opening(size_t index) = 0;
  // The choices (in the JSON sense) that one output makes in a stream; may be none.
  virtual std::vector<Json> chunks(size_t index, const Output& output) = 0;
  // The choice that all outputs of a request make together.
  virtual Json choice(size_t index, const Output& whole) = 0;
  // As AnswerWriter::kept_bytes().
  virtual size_t kept_bytes() const { return 0; }
};

class ChoicesWriter final : public AnswerWriter {
 public:
  // `choices`: of all prompts together. The format must outlive this.
  ChoicesWriter(AnswerHead head, ChoiceFormat& format, size_t choices, bool include_usage);

  std::string opening(const AnswerUsage& usage) override;
  std::string news(size_t index, const Output& output) override;
  std::string ending(const AnswerUsage& usage) override;
  std::string failure(const ApiError& error) override;
  size_t kept_bytes() const override { return format_.kept_bytes(); }
  Json body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  Json object(const std::string& name, Json choices) const;
  std::string chunk(const Json& choice) const;

  AnswerHead head_;
  ChoiceFormat& format_;
  size_t choices_;
  bool include_usage_;
};

// {"prompt_tokens":…,"completion_tokens":…,"total_tokens":…,…}.
Json usage_object(const AnswerUsage& usage);

}  // namespace lockstep
