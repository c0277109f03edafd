// The answers that tests of ranks compare.
#pragma once

#include <span>
#include <vector>

#include "tests/engine/runtime/logits_rows.h"

namespace lockstep {

// A model's logits for one sequence alone, as a prompt and token by token, and for the same
// sequence among others.
struct Answers {
  LogitRows prompt;
  LogitRows generated;
  LogitRows among_others;
};

inline Answers compute_answers(LoadedModel& model) {
  const auto tokens = some_tokens(70, 2);
  const auto others = some_tokens(33, 4);
  Answers answers;
  answers.prompt = model.compute_alone(tokens, 128);
  answers.generated = model.compute_alone(std::span(tokens).first(12), 1);
  auto before = model.new_sequence(33);
  auto mine = model.new_sequence(70);
  auto after = model.new_sequence(5);
  const std::vector<LoadedModel::Piece> pieces = {
      {before, others}, {mine, tokens}, {after, std::span(others).first(5)}};
  const LogitRows all = model.compute(pieces);
  answers.among_others.assign(all.begin() + 33, all.begin() + 103);
  return answers;
}

}  // namespace lockstep
