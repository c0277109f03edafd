// The memory that a rank's step brings to the other ranks: which bytes of which rows. It follows
// from the plan and the batch alone, so two processes that have both know the same of each other's
// ranks: nothing but the bytes has to travel between them. Under `gather`.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/graph/arenas.h"
#include "engine/operations/embed/embed_step.h"
#include "engine/operations/plan.h"
#include "engine/pass/batch.h"

namespace lockstep {

// A stretch of bytes of each of some rows: in the exchange arena, where every rank has a copy at
// the same place, or in rank 0's logits.
struct ExchangedRows {
  ArenaOffset<std::byte> first = {};  // of row 0
  size_t stride_bytes = 0;
  size_t row_bytes = 0;
  Rows rows = Rows::kTokens;
  size_t chosen_count = 0;  // with kExperts: rows of a token
  // The rows of which tokens: generated ones come first. Of kExperts all rows go.
  bool generated = true;
  bool prompted = true;
  const EmbedStep* embed = nullptr;  // the rows that this step holds; null: all of them

  bool is_of_logits() const { return first.arena == Arena::kLogits; }
};

// In a fixed order; none where the step brings nothing. The plan must outlive the result.
std::vector<ExchangedRows> exchanged_rows(const Step& step);

// The bytes that they have in a batch, and in the largest of a plan's passes.
size_t exchanged_bytes(const ExchangedRows& rows, const Batch& batch);
size_t exchanged_bytes_most(const ExchangedRows& rows, const Plan& plan);

// Copies them from a rank's memory, one after another, or into it; returns what lies behind them.
std::byte* take_rows(const ExchangedRows& rows, const Batch& batch, const ArenaAddresses& from,
                     std::byte* to);
const std::byte* put_rows(const ExchangedRows& rows, const Batch& batch, const ArenaAddresses& to,
                          const std::byte* from);

}  // namespace lockstep
