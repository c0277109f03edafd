// The cost of prompt tokens, in tokens that see few keys: the deeper in its sequence a
// token is, the more keys it sees.
#pragma once

#include <cstddef>

namespace lockstep {

// Prompts in smaller chunks would read the weights too often.
inline constexpr size_t kPromptChunkLeast = 32;

// This many seen keys are counted as one token more. By operations it is 5,000 (0.6B parameters) to
// 50,000 (70B): so few that attention may be several times as slow as products, and a chunk deep in
// a prompt is counted as too costly rather than too cheap. Not measured.
inline constexpr double kKeysPerToken = 1024;

// The work of the tokens [begin, begin + count) of a sequence.
double prompt_work(size_t begin, size_t count);

// How many tokens from `begin` on, `most` at most, cost no more than `work`.
size_t prompt_tokens_within(double work, size_t begin, size_t most);

}  // namespace lockstep
