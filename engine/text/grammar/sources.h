// Readers of the notations: each adds what a source says to a draft, as an expression. What is
// wrong with the source stays in the draft.
#pragma once

#include <string_view>

#include "engine/base/json.h"
#include "engine/text/grammar/draft.h"

namespace lockstep {

// A character's form: as it is; escaped where a JSON string wants that; or as it is, but for "|",
// which is left out.
enum class CharacterForm { kPlain, kInJsonString, kWithoutBar };

struct RegexOptions {
  CharacterForm form = CharacterForm::kPlain;
  bool anywhere = false;  // a match of a part is enough; otherwise the whole text must match
};
ExpressionId read_regex(GrammarDraft& draft, std::string_view pattern, const RegexOptions& options);

// Adds the rules; the expression is the one of "root".
ExpressionId read_gbnf(GrammarDraft& draft, std::string_view text);

// `pointer` is the schema's place in the source, for messages: "" or "/1/schema".
ExpressionId read_schema(GrammarDraft& draft, const Json& schema, std::string_view pointer);

// A template's part of all arguments of a call, in a syntax of values that need not be JSON:
// {"arguments": SCHEMA, "values": "json" | "python"}, or with "marked", "quote": part (what stands
// around texts) and "quote_text": "…", or with "pairs" the members of PairFrame.
ExpressionId read_arguments(GrammarDraft& draft, const Json& part, std::string_view pointer);

ExpressionId read_choice(GrammarDraft& draft, const Json& list);
ExpressionId read_template(GrammarDraft& draft, const Json& part);

// A template's part of pairs (pairs_source.cpp says what it holds), as the server makes it.
ExpressionId read_pairs(GrammarDraft& draft, const Json& part, std::string_view pointer);

// Any text in which `mark` does not stand. Its masks cost least where the mark's first character
// stands in it once: it can begin nowhere but there.
ExpressionId text_without(GrammarDraft& draft, std::string_view mark);

}  // namespace lockstep
