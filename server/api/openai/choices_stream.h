// The streams of /v1/completions and /v1/chat/completions: chunks, each with one choice.
#pragma once

#include <cstddef>
#include <string>

#include "server/api/common/stream_writer.h"
#include "server/api/openai/answer_head.h"
#include "server/api/openai/choice_format.h"

namespace lockstep {

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
