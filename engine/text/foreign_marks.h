// Chat templates and the control tokens in the words of requests. A template writes control tokens
// itself; one that puts them together from what a request says ("<|" + message.name + "|>") would
// lose them where what a request says makes none.
#pragma once

#include <vector>

#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

// Renders with bos_token and eos_token of the vocabulary; fails as ChatTemplate::render().
Result<TracedText> render_for(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                              nlohmann::ordered_json variables);

// The marks that the template makes, in full or in part, of foreign text in conversations that
// spell none: ascending ids. Conversations that it refuses tell nothing.
std::vector<TokenId> find_foreign_marks(const Tokenizer& tokenizer,
                                        const ChatTemplate& chat_template);

}  // namespace lockstep
