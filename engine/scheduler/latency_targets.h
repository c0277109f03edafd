// Latency targets for first tokens and for the tokens after them, and the share of a pass that
// prompts get under them.
#pragma once

#include <cstddef>
#include <span>

#include "engine/scheduler/pass_cost.h"

namespace lockstep {

// Tokens that follow one another as fast as this still read as fluent text.
inline constexpr double kFluentSeconds = 0.1;

// In seconds. Both are needed: with one of them 0 there are no targets.
struct LatencyTargets {
  double first_token = 0;  // from a request's arrival to its first token
  double token = 0;        // from a token of a stream to the next one

  bool any() const { return first_token > 0 && token > 0; }

  // Returns the prompt work of the next pass beside so many streams. `waiting` is the work that is
  // left of each prompt.
  //
  // Beside streams the pass is long enough for the prompts to end within half of the first target,
  // so that those that arrive meanwhile can meet it too. It takes at least kFluentSeconds and at
  // most the second target. A prompt that takes long by itself asks for half of the time: a stream
  // beside it runs at half its speed. Where any prompt costs a pass much (weights are unpacked for
  // it), the prompts' own work is at least as much again.
  // Without streams the pass takes half of the first target: the next prompt may have to wait for
  // it.
  double prompt_work(const PassCost& cost, size_t streams, std::span<const double> waiting) const;
};

// A shorter prompt may overtake one that arrived earlier by up to this many times the difference of
// their times. With 1 and 2 short prompts wait long behind long ones; with 8 and more long ones
// wait up to twice as long (simulated: closed loops of 16 and 32 clients, 20 to 500 tokens).
inline constexpr double kOvertaking = 4;

}  // namespace lockstep
