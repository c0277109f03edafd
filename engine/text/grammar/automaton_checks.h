// Properties of an automaton as a whole.
#pragma once

#include <optional>
#include <vector>

#include "engine/text/grammar/automaton.h"

namespace lockstep {

// By state: whether the end of its rule can be reached from it.
std::vector<bool> find_productive(const Automaton& automaton);

// A rule that can call itself before any byte is read, if there is one. Expects that every edge
// leads to where the end can be reached.
std::optional<RuleId> find_left_recursion(const Automaton& automaton, size_t rule_count);

}  // namespace lockstep
