#include "engine/text/chat_template.h"

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/text/jinja/render.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// Everyday conversations: no word of theirs is a control token's.
constexpr std::string_view kConversations = R"([
  [{"role": "user", "content": "What is it?", "name": "user"}],
  [{"role": "system", "content": "Be brief."},
   {"role": "user", "content": "What is it?"},
   {"role": "assistant", "content": "A clock."},
   {"role": "user", "content": "Is it?", "name": "user"}],
  [{"role": "user", "content": "What is it?"},
   {"role": "assistant", "content": "A clock.", "reasoning_content": "It ticks."},
   {"role": "user", "content": "Is it?"}],
  [{"role": "user", "content": "What is it?"},
   {"role": "assistant", "content": "", "tool_calls": [
     {"id": "abcdefgh1", "type": "function",
      "function": {"name": "look", "arguments": {"at": "it"}}}]},
   {"role": "tool", "content": "A clock.", "tool_call_id": "abcdefgh1", "name": "look"}],
  [{"role": "system", "content": "Be brief."},
   {"role": "user", "content": "What is it?"},
   {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [
     {"id": "abcdefgh1", "type": "function",
      "function": {"name": "look", "arguments": {"at": "it"}}}]},
   {"role": "tool", "content": "A clock.", "tool_call_id": "abcdefgh1", "name": "look"},
   {"role": "assistant", "content": "A clock."},
   {"role": "user", "content": "Is it?"}]
])";

constexpr std::string_view kTools = R"([
  {"type": "function",
   "function": {"name": "look", "description": "Looks at it.",
                "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
])";

std::vector<Json> probes() {
  std::vector<Json> all;
  for (const Json& messages : Json::parse(kConversations)) {
    for (const Json& tools : {Json(nullptr), Json::parse(kTools)}) {
      all.push_back({{"messages", messages},
                     {"tools", tools},
                     {"documents", nullptr},
                     {"add_generation_prompt", true}});
    }
  }
  return all;
}

std::map<TokenId, size_t> count_marks(const Tokenizer& tokenizer, const TracedText& text,
                                      std::span<const TextRange> foreign) {
  std::map<TokenId, size_t> counts;
  const EncodeOptions options{.add_special = false, .parse_special = true, .foreign = foreign};
  for (const TokenId token : tokenizer.encode(text.text, options)) {
    if (tokenizer.is_mark(token)) ++counts[token];
  }
  return counts;
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Template parsed;
  TemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::compile(std::string source, const TemplateLimits& limits) {
  auto parsed = jinja::compile(source, limits);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  return ChatTemplate(std::make_unique<const Program>(Program{std::move(*parsed), limits}));
}

Result<TracedText> ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  return jinja::render(program_->parsed, program_->limits, variables, jinja::read_local_clock);
}

Result<TracedText> render_for(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                              nlohmann::ordered_json variables) {
  const auto text_of = [&](std::optional<TokenId> token) {
    return token ? std::string(tokenizer.token_text(*token)) : std::string();
  };
  variables["bos_token"] = text_of(tokenizer.bos());
  variables["eos_token"] = text_of(tokenizer.eos());
  return chat_template.render(variables);
}

std::vector<TokenId> find_foreign_marks(const Tokenizer& tokenizer,
                                        const ChatTemplate& chat_template) {
  std::set<TokenId> found;
  for (const Json& variables : probes()) {
    const auto text = render_for(tokenizer, chat_template, variables);
    if (!text) continue;
    const auto own = count_marks(tokenizer, *text, text->foreign);
    for (const auto& [token, count] : count_marks(tokenizer, *text, {})) {
      const auto kept = own.find(token);
      if (kept == own.end() || kept->second < count) found.insert(token);
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace lockstep
