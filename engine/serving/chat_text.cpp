#include "engine/serving/chat_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "engine/base/log.h"
#include "engine/text/chat_template.h"

namespace lockstep {

ChatText::ChatText(const Tokenizer& tokenizer, bool special_tokens_in_messages)
    : tokenizer_(&tokenizer), special_tokens_in_messages_(special_tokens_in_messages) {}

Result<ChatText> ChatText::read(const GgufFile& file, const Tokenizer& tokenizer,
                                bool special_tokens_in_messages) {
  ChatText chat(tokenizer, special_tokens_in_messages);
  const auto source = file.text("tokenizer.chat_template");
  if (!source) return std::unexpected(source.error());
  if (!source->has_value()) {
    chat.error_ = "the model has no chat template (tokenizer.chat_template)";
    return chat;
  }
  auto compiled = ChatTemplate::compile(**source);
  if (compiled) {
    chat.chat_template_ = std::move(*compiled);
    chat.read_tools_template(file);
    chat.find_marks();
  } else {
    chat.error_ = "the model's chat template cannot be used: " + compiled.error().message;
    spdlog::warn("{}; chat completions will be refused", chat.error_);
  }
  return chat;
}

void ChatText::read_tools_template(const GgufFile& file) {
  const auto source = file.text("tokenizer.chat_template.tool_use");
  if (!source || !source->has_value()) return;
  auto compiled = ChatTemplate::compile(**source);
  if (compiled) {
    tools_template_ = std::move(*compiled);
    return;
  }
  spdlog::warn("the model's chat template for tools cannot be used: {}; the usual one is taken",
               compiled.error().message);
}

void ChatText::find_marks() {
  if (special_tokens_in_messages_) return;
  foreign_marks_ = find_foreign_marks(*tokenizer_, *chat_template_);
  if (tools_template_) {
    std::vector<TokenId> both;
    std::ranges::set_union(foreign_marks_, find_foreign_marks(*tokenizer_, *tools_template_),
                           std::back_inserter(both));
    foreign_marks_ = std::move(both);
  }
  if (foreign_marks_.empty()) return;
  std::vector<std::string_view> texts;
  for (const TokenId token : foreign_marks_) texts.push_back(tokenizer_->token_text(token));
  spdlog::warn(
      "the chat template makes control tokens of what requests say: {}; messages that spell these "
      "get them, too. All others stay words (special-tokens-in-messages is off)",
      fmt::join(texts, ", "));
}

const ChatTemplate& ChatText::template_for(const nlohmann::ordered_json& variables) const {
  const auto tools = variables.find("tools");
  const bool has_tools = tools != variables.end() && tools->is_array() && !tools->empty();
  return has_tools && tools_template_ ? *tools_template_ : *chat_template_;
}

Result<TracedText> ChatText::render(nlohmann::ordered_json variables) const {
  if (!chat_template_) return invalid_input("{}", error_);
  const ChatTemplate& chosen = template_for(variables);
  return render_for(*tokenizer_, chosen, std::move(variables));
}

EncodeOptions ChatText::encoding(const TracedText& text) const {
  EncodeOptions options{.add_special = false, .parse_special = true};
  if (special_tokens_in_messages_) return options;
  options.foreign = text.foreign;
  options.foreign_marks = foreign_marks_;
  return options;
}

}  // namespace lockstep
