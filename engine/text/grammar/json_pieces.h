// JSON as it is generated: compact, with at most one space after a colon and after a comma, so that
// no model can go on with white space for ever.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/text/grammar/draft.h"

namespace lockstep {

// One character of a string, as it is or escaped. Never half a surrogate pair.
ExpressionId json_string_character(GrammarDraft& draft);
ExpressionId json_string(GrammarDraft& draft);
// With so many characters.
ExpressionId json_string(GrammarDraft& draft, uint32_t min, uint32_t max);
// Any number but those so long or large that readers lose them.
ExpressionId json_number(GrammarDraft& draft);
ExpressionId json_integer(GrammarDraft& draft);
ExpressionId json_any_value(GrammarDraft& draft);
ExpressionId json_any_object(GrammarDraft& draft);
ExpressionId json_any_array(GrammarDraft& draft);

ExpressionId json_comma(GrammarDraft& draft);
ExpressionId json_colon(GrammarDraft& draft);
// From `min` to `max` parts with commas between them.
ExpressionId json_list(GrammarDraft& draft, ExpressionId part, uint32_t min, uint32_t max);

// The characters of the set as a string holds them: what must be escaped is, in one way.
ExpressionId json_characters(GrammarDraft& draft, const CharacterSet& set);

}  // namespace lockstep
