#include "server/api/common/chat_request.h"

#include <algorithm>
#include <utility>

#include "server/api/common/turn_syntax.h"

namespace lockstep {
namespace {

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \n\t\r") == std::string_view::npos;
}

constexpr std::string_view kMark = "lockstep:the-answer-goes-on-here";
// Ends the mark. A template that trims drops it; none writes such a space by itself.
constexpr char kTrimmed = '\f';
constexpr std::string_view kSpace = " \n\t\r\f\v";

}  // namespace

std::string parse_text_content(JsonFields& holder, std::string_view name,
                               std::span<const std::string_view> types) {
  const Json* content = holder.any(name);
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    holder.refuse(name,
                  fmt::format("must be a string or a list of parts, not {}", kind_name(*content)));
    return "";
  }
  std::string text;
  for (const Json& part : *content) {
    const auto type = part.is_object() ? part.find("type") : part.end();
    const auto part_text = part.is_object() ? part.find("text") : part.end();
    const bool known = part.is_object() && type != part.end() && type->is_string() &&
                       std::ranges::find(types, type->get_ref<const std::string&>()) != types.end();
    if (!known || part_text == part.end() || !part_text->is_string()) {
      holder.refuse(name, fmt::format("parts must be {{\"type\": \"{}\", \"text\": …}}; this "
                                      "server takes no others",
                                      fmt::join(types, "\" or \"")));
      return "";
    }
    text += part_text->get_ref<const std::string&>();
  }
  return text;
}

bool can_continue(const Json& messages) {
  if (messages.empty()) return false;
  const Json& last = messages.back();
  return last["role"] == "assistant" && !last.contains("tool_calls") &&
         last["content"].is_string() && !is_blank(last["content"].get_ref<const std::string&>());
}

ApiResult<ChatPrompt> encode_chat(const ServedModel& model, const Json& variables,
                                  std::string_view parameter, PromptEnd end) {
  const Engine& engine = model.engine();
  auto text = engine.render_chat(variables);
  if (!text && !engine.has_chat_template()) {
    return std::unexpected(bad_parameter(
        parameter, fmt::format("Chats cannot be answered: {}; use /v1/completions instead",
                               text.error().message)));
  }
  if (!text) {
    ApiError error = model.to_api_error(text.error());
    error.message = "The model's chat template refused the messages: " + error.message;
    if (error.status == 400) error.parameter = parameter;
    return std::unexpected(std::move(error));
  }
  if (end.continues_last && !cut_at_mark(*text)) {
    return std::unexpected(bad_parameter(
        parameter,
        "The model's chat template changes the last message: it cannot be gone on with"));
  }
  const bool closed = end.closes_reasoning && close_reasoning(*text);
  const EncodeOptions options = engine.chat_encoding(*text);
  auto fitting = end.must_fit ? encode_fitting(engine.tokenizer(), text->text, options,
                                               model.limits(), parameter)
                              : engine.tokenizer().encode(text->text, options);
  if (!fitting) return std::unexpected(std::move(fitting.error()));
  std::vector<TokenId> tokens = std::move(*fitting);
  if (tokens.empty() && engine.tokenizer().bos()) tokens.push_back(*engine.tokenizer().bos());
  if (tokens.empty()) {
    return std::unexpected(
        bad_parameter(parameter, "The model's chat template makes no tokens of these messages"));
  }
  return ChatPrompt{std::move(text->text), std::move(tokens), closed};
}

void mark_content_end(Json& message) {
  std::string& content = message["content"].get_ref<std::string&>();
  content += kMark;
  content += kTrimmed;
}

bool cut_at_mark(TracedText& prompt) {
  const std::string& text = prompt.text;
  const size_t mark = text.rfind(kMark);
  if (mark == std::string::npos) return false;
  const size_t behind = mark + kMark.size();
  const bool trims = behind == text.size() || text[behind] != kTrimmed;
  prompt.truncate(mark);
  if (trims) prompt.truncate(text.find_last_not_of(kSpace) + 1);
  return true;
}

}  // namespace lockstep
