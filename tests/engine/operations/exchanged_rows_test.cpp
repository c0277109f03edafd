// The bytes that a step brings to other hosts: those that they lack, no other, and as many as were
// foretold.
#include "engine/operations/exchanged_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "engine/base/checked_math.h"
#include "engine/graph/graph.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 16U;
constexpr size_t kFirst = 256;  // of a buffer in its arena: not its beginning

// Places in a rank's memory: an arena, and bytes of it.
using Places = std::map<Arena, std::set<size_t>>;

struct Memory {
  explicit Memory(int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (const Arena arena : {Arena::kExchange, Arena::kLogits}) {
      auto& bytes = arenas[arena];
      bytes.resize(kArenaBytes);
      for (std::byte& one : bytes) one = static_cast<std::byte>(random());
      addresses[arena] = reinterpret_cast<uintptr_t>(bytes.data());
    }
  }

  std::map<Arena, std::vector<std::byte>> arenas;
  ArenaAddresses addresses;
};

Batch batch_of(const std::vector<TokenId>& tokens, size_t generated,
               const std::vector<uint32_t>& logit_tokens = {}) {
  Batch batch;
  for (const TokenId token : tokens) batch.tokens.push_back({.token = token});
  batch.generated_tokens = generated;
  batch.logit_tokens = logit_tokens;
  return batch;
}

Batch some_batch() {
  return batch_of({5, 17, 4, 30, 16}, 2, {0, 1, 3});
}

Step at_barrier(StepWork work) {
  return {.work = std::move(work), .meet = Meet::kAllRanks};
}

// Takes the step's rows out of one rank's memory and puts them into another one's: which bytes are
// those of the first then.
Places moved_places(const Step& step, const Batch& batch, const Memory& from = Memory(1)) {
  Memory to(2);
  const Memory before = to;
  Plan plan;
  plan.batch_tokens = batch.tokens.size();
  plan.logit_rows = batch.logit_tokens.size();
  for (const ExchangedRows& rows : exchanged_rows(step)) {
    const size_t bytes = exchanged_bytes(rows, batch);
    EXPECT_LE(bytes, exchanged_bytes_most(rows, plan));
    // One byte more on both sides, which must keep its value.
    std::vector<std::byte> wire(bytes + 2, std::byte{0xa5});
    EXPECT_EQ(take_rows(rows, batch, from.addresses, wire.data() + 1), wire.data() + 1 + bytes);
    EXPECT_EQ(wire.front(), std::byte{0xa5});
    EXPECT_EQ(wire.back(), std::byte{0xa5});
    EXPECT_EQ(put_rows(rows, batch, to.addresses, wire.data() + 1), wire.data() + 1 + bytes);
  }
  Places places;
  for (const auto& [arena, bytes] : to.arenas) {
    const auto& source = from.arenas.at(arena);
    for (size_t at = 0; at < bytes.size(); ++at) {
      if (bytes[at] == before.arenas.at(arena)[at]) continue;
      EXPECT_EQ(bytes[at], source[at]) << at;
      places[arena].insert(at);
    }
  }
  return places;
}

// A stretch of each of some rows, as moved_places() sees it: without bytes that are alike before
// and behind.
void expect_places(const Step& step, const Batch& batch, Arena arena,
                   const std::vector<std::pair<size_t, size_t>>& stretches) {
  const Memory from(1);
  const Memory to(2);
  Places expected;
  for (const auto& [first, bytes] : stretches) {
    for (size_t at = first; at < first + bytes; ++at) {
      if (from.arenas.at(arena)[at] != to.arenas.at(arena)[at]) expected[arena].insert(at);
    }
  }
  EXPECT_EQ(moved_places(step, batch), expected);
}

Forms forms_of(ActivationForm form, size_t columns, bool prompted, bool generated) {
  Forms forms;
  forms.columns = columns;
  forms[form] = {.rows = {Arena::kExchange, kFirst},
                 .stride_bytes = activation_row_bytes(form, columns) + 64,
                 .prompted = prompted,
                 .generated = generated};
  return forms;
}

// Columns 32 to 95 of 128, or of 96, which end the row.
Step form_step(ActivationForm form, bool prompted = true, bool generated = true,
               size_t all_columns = 128, Rows rows = Rows::kTokens) {
  FormStep step;
  step.rows = rows;
  step.output = {.forms = forms_of(form, all_columns, prompted, generated),
                 .first_column = 32,
                 .gather = true,
                 .columns = 64};
  if (rows == Rows::kExperts) step.routing.chosen_count = 2;
  return at_barrier(step);
}

size_t row_at(const Step& step, ActivationForm form, size_t row) {
  const Forms& forms = std::get<FormStep>(step.work).output.forms;
  return kFirst + row * forms[form].stride_bytes;
}

TEST(ExchangedRows, floats_are_the_ranks_own_columns) {
  const Step step = form_step(ActivationForm::kF32);
  std::vector<std::pair<size_t, size_t>> expected;
  for (size_t row = 0; row < 5; ++row) {
    expected.emplace_back(row_at(step, ActivationForm::kF32, row) + 32 * sizeof(float),
                          64 * sizeof(float));
  }
  expect_places(step, some_batch(), Arena::kExchange, expected);
}

TEST(ExchangedRows, of_bf16_the_zeros_behind_the_last_column_come_along) {
  for (const ActivationForm form : {ActivationForm::kBf16, ActivationForm::kBf16Dots}) {
    const Step middle = form_step(form);
    expect_places(middle, batch_of({1}, 0), Arena::kExchange,
                  {{row_at(middle, form, 0) + 64, 128}});
    // 90 columns in all: this rank's last 58 and what fills the chunk.
    Step last = form_step(form, true, true, 90);
    std::get<FormStep>(last.work).output.columns = 58;
    const size_t written = round_up<size_t>(90, kChunkColumns) - 32;
    expect_places(last, batch_of({1}, 0), Arena::kExchange,
                  {{row_at(last, form, 0) + 64, 2 * written}});
  }
}

TEST(ExchangedRows, of_quantized_rows_scales_go_with_the_numbers_and_sums_are_formed_of_them) {
  const Step step = form_step(ActivationForm::kQ8);
  const Q8Row row = q8_row(128);
  const size_t begin = row_at(step, ActivationForm::kQ8, 0);
  Memory from(1);
  float values[64];
  for (size_t index = 0; index < 64; ++index) {
    values[index] = std::sin(static_cast<float>(index)) * (index < 32 ? 1e-3F : 1e3F);
  }
  values[63] = std::numeric_limits<float>::quiet_NaN();
  all_kernel_tables().front()->quantize(values, 128, 32, 64,
                                        from.arenas.at(Arena::kExchange).data() + begin);
  const Memory before(2);
  Places expected;
  const auto expect = [&](size_t first, size_t bytes) {
    for (size_t at = first; at < first + bytes; ++at) {
      const auto byte_of = [&](const Memory& memory) {
        return memory.arenas.at(Arena::kExchange)[at];
      };
      if (byte_of(from) != byte_of(before)) expected[Arena::kExchange].insert(at);
    }
  };
  expect(begin + 32, 64);
  for (const size_t part : {row.scales, row.sums, row.first_sums, row.scaled_sums}) {
    expect(begin + part + sizeof(float), 2 * sizeof(float));
  }
  const Batch batch = batch_of({1}, 0);
  EXPECT_EQ(moved_places(step, batch, from), expected);
  size_t bytes = 0;
  for (const ExchangedRows& rows : exchanged_rows(step)) bytes += exchanged_bytes(rows, batch);
  EXPECT_EQ(bytes, 64 + 2 * sizeof(float));
}

TEST(ExchangedRows, some_rows_go_by_themselves) {
  const Step step = form_step(ActivationForm::kF32);
  const ExchangedRows rows = exchanged_rows(step).front();
  const Batch batch = some_batch();
  const Memory from(1);
  std::vector<std::byte> whole(exchanged_bytes(rows, batch));
  take_rows(rows, batch, from.addresses, whole.data());
  std::vector<std::byte> parts;
  for (const Range part : {Range{0, 2}, Range{2, 3}, Range{3, 100}}) {
    std::vector<std::byte> bytes(exchanged_bytes(rows, batch, part));
    EXPECT_EQ(take_rows(rows, batch, from.addresses, bytes.data(), part),
              bytes.data() + bytes.size());
    parts.insert(parts.end(), bytes.begin(), bytes.end());
  }
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(exchanged_bytes(rows, batch, {7, 9}), 0U);
  // A form of one kind of tokens has those of them that are among these rows.
  const Step generated = form_step(ActivationForm::kF32, false, true);
  EXPECT_EQ(exchanged_bytes(exchanged_rows(generated).front(), batch, {1, 4}), 64 * sizeof(float));
}

TEST(ExchangedRows, forms_of_one_kind_of_tokens_go_of_those_alone) {
  constexpr auto kForm = ActivationForm::kF32;
  const std::pair<size_t, size_t> generated_rows = {0, 2};
  const std::pair<size_t, size_t> prompted_rows = {2, 5};
  for (const bool generated : {false, true}) {
    const Step step = form_step(kForm, !generated, generated);
    const auto [begin, end] = generated ? generated_rows : prompted_rows;
    std::vector<std::pair<size_t, size_t>> expected;
    for (size_t row = begin; row < end; ++row) {
      expected.emplace_back(row_at(step, kForm, row) + 32 * sizeof(float), 64 * sizeof(float));
    }
    expect_places(step, some_batch(), Arena::kExchange, expected);
  }
  // Over rows of logits: those of generated tokens stand first, too.
  const Step logits = form_step(kForm, false, true, 128, Rows::kLogits);
  expect_places(logits, some_batch(), Arena::kExchange,
                {{row_at(logits, kForm, 0) + 128, 256}, {row_at(logits, kForm, 1) + 128, 256}});
  EXPECT_TRUE(moved_places(form_step(kForm, false, false), some_batch()).empty());
}

TEST(ExchangedRows, experts_have_a_row_for_each_choice_of_a_token) {
  constexpr auto kForm = ActivationForm::kF32;
  const Step step = form_step(kForm, true, true, 128, Rows::kExperts);
  std::vector<std::pair<size_t, size_t>> expected;
  for (size_t row = 0; row < 10; ++row) {
    expected.emplace_back(row_at(step, kForm, row) + 128, 256);
  }
  Batch batch = some_batch();
  batch.generated_tokens = 0;
  expect_places(step, batch, Arena::kExchange, expected);
}

TEST(ExchangedRows, of_embeddings_go_the_tokens_that_the_rank_holds) {
  EmbedStep step;
  step.table = {.rows = 13, .columns = 8};  // tokens 5 to 17
  step.row_begin = 5;
  step.output = {Arena::kExchange, kFirst};
  step.output_stride = 16;
  step.gather = true;
  expect_places(at_barrier(step), some_batch(), Arena::kExchange,
                {{kFirst, 32}, {kFirst + 64, 32}, {kFirst + 4 * 64, 32}});
  step.gather = false;
  EXPECT_TRUE(moved_places(at_barrier(step), some_batch()).empty());
}

TEST(ExchangedRows, logits_go_to_rank_0s_rows) {
  MatmulStep step;
  step.rows = Rows::kLogits;
  MatmulPart part;
  part.matrix = {.rows = 40, .columns = 64};
  part.output = {Arena::kLogits, kFirst};
  part.output_stride = 128;
  step.parts = {part};
  EXPECT_TRUE(exchanged_rows(at_barrier(step)).empty());  // they stay on this host
  step.parts.front().remote = true;
  ASSERT_EQ(exchanged_rows(at_barrier(step)).size(), 1U);
  EXPECT_TRUE(exchanged_rows(at_barrier(step)).front().is_of_logits());
  expect_places(at_barrier(step), some_batch(), Arena::kLogits,
                {{kFirst, 160}, {kFirst + 512, 160}, {kFirst + 1024, 160}});
}

TEST(ExchangedRows, a_norms_sums_go_with_its_output) {
  NormStep step;
  step.norm.output = std::get<FormStep>(form_step(ActivationForm::kF32).work).output;
  step.norm.chunks = {.sums = {Arena::kExchange, 32768}, .stride = 16};
  expect_places(at_barrier(step), batch_of({1, 2}, 0), Arena::kExchange,
                {{kFirst + 128, 256},
                 {kFirst + 128 + step.norm.output.forms[ActivationForm::kF32].stride_bytes, 256},
                 {32768, 2 * sizeof(float)},
                 {32768 + 64, 2 * sizeof(float)}});
}

TEST(ExchangedRows, a_step_that_only_its_rank_waits_for_brings_nothing) {
  Step step = form_step(ActivationForm::kF32);
  EXPECT_FALSE(exchanged_rows(step).empty());
  step.meet = Meet::kRank;
  EXPECT_TRUE(exchanged_rows(step).empty());
  step = at_barrier(HeadsStep());
  EXPECT_TRUE(exchanged_rows(step).empty());
}

TEST(ExchangedRows, the_most_is_reached_by_the_largest_batch) {
  Plan plan;
  plan.batch_tokens = 5;
  plan.logit_rows = 3;
  const Step steps[] = {form_step(ActivationForm::kQ8),
                        form_step(ActivationForm::kF32, true, true, 128, Rows::kExperts),
                        form_step(ActivationForm::kF32, true, true, 128, Rows::kLogits)};
  Batch batch = some_batch();
  batch.generated_tokens = 0;
  for (const Step& step : steps) {
    for (const ExchangedRows& rows : exchanged_rows(step)) {
      EXPECT_EQ(exchanged_bytes(rows, batch), exchanged_bytes_most(rows, plan));
      EXPECT_EQ(exchanged_bytes(rows, batch_of({}, 0)), 0U);
    }
  }
}

}  // namespace
}  // namespace lockstep
