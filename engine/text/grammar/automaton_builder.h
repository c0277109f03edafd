// A grammar's draft to its automaton.
#pragma once

#include "engine/base/result.h"
#include "engine/text/grammar/automaton.h"
#include "engine/text/grammar/draft.h"

namespace lockstep {

// Fails with kInvalidInput for a grammar that is left-recursive, matches nothing, names a rule
// without a body, or is too much for the draft's budget.
Result<Automaton> build_automaton(GrammarDraft& draft);

}  // namespace lockstep
