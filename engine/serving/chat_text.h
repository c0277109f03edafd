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
  // Reads the template of the file, and the one for conversations with tools, where it has one of
  // its own (tokenizer.chat_template.tool_use). Without a template that can be used render() fails;
  // the log says it, and which control tokens the templates make of what requests say. The
  // tokenizer must outlive this. Fails where the file's entry is no text.
  static Result<ChatText> read(const GgufFile& file, const Tokenizer& tokenizer,
                               bool special_tokens_in_messages);

  bool has_template() const { return chat_template_.has_value(); }
  // As Engine::render_chat() and Engine::chat_encoding().
  Result<TracedText> render(nlohmann::ordered_json variables) const;
  EncodeOptions encoding(const TracedText& text) const;

 private:
  ChatText(const Tokenizer& tokenizer, bool special_tokens_in_messages);
  void read_tools_template(const GgufFile& file);
  void find_marks();
  // The template of a conversation.
  const ChatTemplate& template_for(const nlohmann::ordered_json& variables) const;

  const Tokenizer* tokenizer_;
  bool special_tokens_in_messages_;
  std::optional<ChatTemplate> chat_template_;
  std::optional<ChatTemplate> tools_template_;
  std::string error_;                   // why there is none
  std::vector<TokenId> foreign_marks_;  // that the templates make of what they are given
};

}  // namespace lockstep
