// The memory that a rank's step brings to the other ranks: which bytes of which rows. It follows
// from the plan and the batch alone, so two processes that have both know the same of each other's
// ranks: nothing but the bytes has to travel between them. Under `gather`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/range.h"
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
  // The scales of columns of a kQ8 row, whose quants go before: the sums do not travel, and
  // put_rows() forms them anew of both.
  struct Q8Columns {
    size_t all = 0;  // of the row; 0: these are no scales
    size_t first = 0;
    size_t count = 0;
    size_t scales_offset = 0;  // of the first one's, from the row's begin
  };
  Q8Columns q8 = {};

  bool is_of_logits() const { return first.arena == Arena::kLogits; }
};

// Any number of rows.
inline constexpr Range kAllRows = {0, SIZE_MAX};

// In a fixed order; none where the step brings nothing. The plan must outlive the result.
std::vector<ExchangedRows> exchanged_rows(const Step& step);

// Those of them that are of logits, of a step of any strategy. What rank 0 has itself may be
// missing.
std::vector<ExchangedRows> rows_of_logits(const Step& step);

// The bytes that those of them that are `among` these rows have in a batch, and all of them in the
// largest of a plan's passes.
size_t exchanged_bytes(const ExchangedRows& rows, const Batch& batch, Range among = kAllRows);
size_t exchanged_bytes_most(const ExchangedRows& rows, const Plan& plan);

// Copies those from a rank's memory, one after another, or into it; returns what lies behind them.
std::byte* take_rows(const ExchangedRows& rows, const Batch& batch, const ArenaAddresses& from,
                     std::byte* to, Range among = kAllRows);
const std::byte* put_rows(const ExchangedRows& rows, const Batch& batch, const ArenaAddresses& to,
                          const std::byte* from, Range among = kAllRows);

}  // namespace lockstep
