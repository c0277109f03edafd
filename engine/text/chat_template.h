// A model's chat template: Jinja2 as the transformers library runs it (sandboxed, with trim_blocks
// and lstrip_blocks), rendered by an interpreter of ours under budgets. It reads no file, reaches
// no attribute of the program and calls nothing but the filters, tests and methods listed in its
// table.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/tokenizer.h"
#include "engine/text/traced_text.h"

namespace lockstep {

class ChatTemplate {
 public:
  // Compiles; kInvalidInput with the line for a template that does not parse.
  static Result<ChatTemplate> compile(std::string source, const TemplateLimits& limits = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Renders with the members of `variables` (an object: messages, tools, add_generation_prompt,
  // bos_token, eos_token, ...) as globals. May be called from several threads. Foreign in the text
  // is what comes from the variables, but for bos_token, eos_token and the roles of messages: it
  // stays so through all that the template does with it.
  // Fails with kInvalidInput: the template's own raise_exception (message as it said), an undefined
  // operation (with the line), or a budget that ran out (named).
  Result<TracedText> render(const nlohmann::ordered_json& variables) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

// Chat templates and the control tokens in the words of requests. A template writes control tokens
// itself; one that puts them together from what a request says ("<|" + message.name + "|>") would
// lose them where what a request says makes none.

// Renders with bos_token and eos_token of the vocabulary; fails as ChatTemplate::render().
Result<TracedText> render_for(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                              nlohmann::ordered_json variables);

// The marks that the template makes, in full or in part, of foreign text in conversations that
// spell none: ascending ids. Conversations that it refuses tell nothing.
std::vector<TokenId> find_foreign_marks(const Tokenizer& tokenizer,
                                        const ChatTemplate& chat_template);

}  // namespace lockstep
