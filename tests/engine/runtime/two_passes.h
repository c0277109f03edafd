// Passes of generated tokens whose picks are the next ones' tokens, one waiting for the other or
// begun ahead of its end.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/engine/runtime/loaded_model.h"

namespace lockstep {

// A row as a pass tells of it.
struct PickedRow {
  std::vector<TokenId> tokens;  // candidates
  std::vector<float> logits;
  double weight_sum = 0;  // of a draw
  TokenId pick = 0;

  bool operator==(const PickedRow&) const = default;
};

// Several sequences, of which every second one draws its tokens.
class TwoPasses {
 public:
  TwoPasses(LoadedModel& loaded, size_t sequences, size_t tokens) : loaded_(loaded) {
    for (size_t sequence = 0; sequence < sequences; ++sequence) {
      sequences_.push_back(loaded.new_sequence(tokens));
    }
  }

  // The pass behind the last one; with `picks_rows` its tokens are that one's picks, which the host
  // need not know.
  Batch next(const std::vector<TokenId>& tokens, bool picks_rows) {
    Batch batch;
    batch.group_count = loaded_.plan().kv.group_count();
    for (size_t index = 0; index < sequences_.size(); ++index) {
      const auto slot = static_cast<uint32_t>(index);
      const auto& tables = sequences_[index].tables;
      batch.page_tables.insert(batch.page_tables.end(), tables.begin(), tables.end());
      batch.logit_tokens.push_back(slot);
      batch.draws.push_back(draw_of(index));
      if (picks_rows) batch.picked_rows.push_back(slot);
      batch.tokens.push_back({.token = picks_rows ? -1 : tokens[index],
                              .position = static_cast<uint32_t>(pass_),
                              .sequence = slot,
                              .segment = 1});
    }
    batch.generated_tokens = batch.tokens.size();
    ++pass_;
    return batch;
  }

  // Rows of the pass that was finished last, which was begun with the batch.
  std::vector<PickedRow> rows(const Batch& batch) const {
    std::vector<PickedRow> rows;
    for (size_t row = 0; row < batch.logit_tokens.size(); ++row) {
      LogitRow logits = loaded_.executor().logits(row);
      const LogitCandidates& found = *logits.candidates();
      rows.push_back({.tokens = {found.tokens.begin(), found.tokens.end()},
                      .logits = {found.logits.begin(), found.logits.end()},
                      .weight_sum = found.draw ? found.draw->weight_sum : 0,
                      .pick = loaded_.executor().pick(row)});
      EXPECT_EQ(rows.back().pick, found.draw ? found.draw->token : found.tokens[0]);
    }
    return rows;
  }

  std::vector<TokenId> first_tokens() const {
    std::vector<TokenId> tokens;
    for (size_t index = 0; index < sequences_.size(); ++index) {
      tokens.push_back(static_cast<TokenId>(3 + 5 * index));
    }
    return tokens;
  }

 private:
  LogitDrawRequest draw_of(size_t index) const {
    if (index % 2 == 0) return {};
    const auto step = static_cast<double>(7 * pass_ + 3 * index);
    return {.inverse_temperature = 0.7F,
            .weight_min = index % 4 == 1 ? 0.0F : 0.05F,
            .uniform = step / 11 - static_cast<double>(static_cast<int>(step / 11))};
  }

  LoadedModel& loaded_;
  std::vector<LoadedModel::Sequence> sequences_;
  size_t pass_ = 0;
};

}  // namespace lockstep
