// The marks around a model's thoughts, with which a turn begins where its family thinks. Templates
// of models that always think write the first one into the prompt.
#pragma once

#include <string_view>

#include "engine/text/tokenizer.h"

namespace lockstep {

inline constexpr std::string_view kThoughtsOpen = "<think>";
inline constexpr std::string_view kThoughtsClose = "</think>";

// Whether the answer to this prompt begins within thoughts.
bool ends_in_thoughts(std::string_view prompt);

// Ends such a prompt with thoughts that are over and empty, as templates write them for a model
// that shall not think. False where it is none; nothing happens then.
bool close_thoughts(TracedText& prompt);

}  // namespace lockstep
