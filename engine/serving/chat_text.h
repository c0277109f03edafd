// Conversations as text and as tokens: a model's chat template beside its tokenizer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/model/gguf_file.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

class ChatText {
 public:
  // Reads the template of the file. One that cannot be used, or none, makes render() fail; the log
  // says it, and which control tokens the template makes of what requests say. The tokenizer must
  // outlive this. Fails where the file's entry is no text.
  static Result<ChatText> read(const GgufFile& file, const Tokenizer& tokenizer,
                               bool special_tokens_in_messages);

  bool has_template() const { return chat_template_.has_value(); }
  // As Engine::render_chat() and Engine::chat_encoding().
  Result<TracedText> render(nlohmann::ordered_json variables) const;
  EncodeOptions encoding(const TracedText& text) const;

 private:
  ChatText(const Tokenizer& tokenizer, bool special_tokens_in_messages);
  void find_marks();

  const Tokenizer* tokenizer_;
  bool special_tokens_in_messages_;
  std::optional<ChatTemplate> chat_template_;
  std::string error_;                   // why there is none
  std::vector<TokenId> foreign_marks_;  // that the template makes of what it is given
};

}  // namespace lockstep
