#include "engine/serving/predicting_stage.h"

#include <algorithm>
#include <chrono>

#include "engine/base/check.h"
#include "engine/kernels/attention.h"

namespace lockstep {
namespace {

// The most tokens that wait for the pass that drafts, which computes them as generated ones.
constexpr size_t kKeptMost = 16;

}  // namespace

PredictingStage::PredictingStage(Executor& model, Executor& block, const Plan& plan,
                                 const Limits& limits)
    : model_(model),
      block_(block),
      plan_(plan),
      limits_(limits),
      columns_(plan.given_columns),
      stores_rows_(!limits.given.keys.empty()),
      held_(limits.model_pages, kPageTokens) {
  const size_t own_end = limits_.given.own_begin + block.hidden_width();
  CHECK(columns_ > 0 && columns_ == std::max(model_columns(), own_end),
        "rows of {} columns, and own ones to column {}, for a block of {}", model_columns(),
        own_end, columns_);
}

size_t PredictingStage::hidden_columns() const {
  return limits_.given.layers.empty() ? model_.hidden_width() : 0;
}

size_t PredictingStage::model_columns() const {
  return hidden_columns() + model_.kept_width();
}

// The columns of a row that the model's rows do not have stay zeros.
Result<void> PredictingStage::read_model_row(size_t token, std::span<float> row) {
  const size_t hidden = hidden_columns();
  const size_t kept = model_.kept_width();
  Result<void> read;
  if (hidden > 0) read = model_.read_hidden_rows(token, row.first(hidden), limits_.given.form);
  if (read && kept > 0) read = model_.read_kept_rows(token, row.subspan(hidden, kept));
  return read;
}

Result<void> PredictingStage::read_own_row(size_t token, std::span<float> row) {
  const GivenRows& given = limits_.given;
  const auto last = std::span(batch_.given_rows).subspan(token * columns_, columns_);
  const size_t keys = given.key_columns();
  std::ranges::copy(last.subspan(given.own_begin - keys, keys),
                    row.subspan(given.own_begin - keys, keys).begin());
  return block_.read_hidden_rows(token, row.subspan(given.own_begin, block_.hidden_width()),
                                 given.form);
}

size_t PredictingStage::followed(uint64_t sequence) const {
  const auto found = texts_.find(sequence);
  if (found == texts_.end() || found->second.is_lost) return 0;
  return found->second.computed + kept_tokens(found->second);
}

// A text begins, goes on, or goes on from pages that the model has found, or found again. The row
// of the token before found pages' end is not there: zeros stand for it. None stands for one whose
// keys and values are in these pages.
void PredictingStage::begin_chunk(const PassedChunk& passed, Text& text) {
  passed.borders.grow(passed.tokens, kPageTokens);
  const size_t held = held_.known(passed.tokens, passed.borders, passed.pages);
  const bool goes_on = !text.is_lost && passed.begin > 0 &&
                       passed.begin <= text.computed + kept_tokens(text) && held >= text.computed;
  if (goes_on) return;
  text = {.computed = passed.begin, .rows = {}, .is_lost = held < passed.begin};
  if (!text.is_lost && !stores_rows_) text.rows.resize(columns_);
}

// The row of position p is given with token p + 1, at that one's place.
Result<void> PredictingStage::keep_rows(const PassedChunk& passed, Text& text) {
  begin_chunk(passed, text);
  if (text.is_lost) return {};
  for (size_t position = passed.begin; position < passed.begin + passed.count; ++position) {
    if (place_of(position + 1) < text.computed + kept_tokens(text)) continue;
    if (position + 1 >= passed.tokens.size()) break;
    text.rows.resize(text.rows.size() + columns_);
    const size_t token = passed.first_token + position - passed.begin;
    auto read = read_model_row(token, std::span(text.rows).last(columns_));
    if (!read) return read;
  }
  return {};
}

// All but the last one, which is for the pass that drafts.
size_t PredictingStage::due_tokens(const Text& text, std::span<const uint32_t> pages) const {
  const size_t kept = std::max<size_t>(1, kept_tokens(text)) - 1;
  const size_t end = std::min(text.computed + kept, pages.size() * kPageTokens);
  const size_t count = end - std::min(end, text.computed);
  const bool fills_page = text.computed / kPageTokens < end / kPageTokens;
  return count >= kKeptMost || (count > 0 && fills_page) ? std::min(count, plan_.batch_tokens) : 0;
}

// Pages are known by the tokens whose places they are.
Result<void> PredictingStage::compute_kept(const PassedChunk& passed, Text& text, size_t count) {
  parts_ = {{.tokens = passed.tokens.subspan(text.computed + (stores_rows_ ? 1 : 0), count),
             .pages = passed.pages,
             .begin = text.computed,
             .rows = std::span(text.rows).first(count * columns_)}};
  if (auto ran = run_parts(); !ran) return ran;
  held_.write_text(passed.pages, passed.borders, text.computed,
                   passed.tokens.subspan(text.computed, count));
  text.computed += count;
  text.rows.erase(text.rows.begin(), text.rows.begin() + static_cast<ptrdiff_t>(count * columns_));
  return {};
}

Result<void> PredictingStage::follow(std::span<const PassedChunk> passed) {
  for (const PassedChunk& each : passed) {
    if (auto kept = keep_rows(each, texts_[each.sequence]); !kept) return kept;
  }
  for (const PassedChunk& each : passed) {
    Text& text = texts_[each.sequence];
    while (const size_t count = due_tokens(text, each.pages)) {
      if (auto computed = compute_kept(each, text, count); !computed) return computed;
    }
  }
  return {};
}

void PredictingStage::add_part(const Part& part) {
  const auto slot = static_cast<uint32_t>(batch_.sequence_count());
  batch_.page_tables.push_back(part.pages);
  for (size_t index = 0; index < part.tokens.size(); ++index) {
    batch_.tokens.push_back({.token = part.tokens[index],
                             .position = static_cast<uint32_t>(part.begin + index),
                             .sequence = slot});
  }
  batch_.given_rows.insert(batch_.given_rows.end(), part.rows.begin(), part.rows.end());
  if (part.stream == nullptr) return;
  batch_.logit_tokens.push_back(static_cast<uint32_t>(batch_.tokens.size() - 1));
}

// Parts that draft are computed as generated tokens are.
Result<void> PredictingStage::run_parts() {
  batch_.clear();
  held_.take_cleared(batch_.cleared_pages);
  for (const Part& part : parts_) {
    add_part(part);
    if (part.stream != nullptr) batch_.generated_tokens = batch_.tokens.size();
  }
  const auto begin = std::chrono::steady_clock::now();
  auto ran = block_.run(batch_);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const bool drafts = batch_.generated_tokens > 0;
  if (drafts && batch_.tokens.size() <= 2 * parts_.size()) add_time(taken.count(), pass_seconds_);
  return ran;
}

// Adds what the block lacks of a text, up to its last token, if all rows for it are there.
void PredictingStage::add_stream(DraftStream& stream, size_t& left) {
  stream.drafts.clear();
  const size_t known = stream.tokens.size();
  const auto found = texts_.find(stream.sequence);
  if (stream.most == 0 || known > limits_.positions || found == texts_.end()) return;
  const Text& text = found->second;
  const size_t count = kept_tokens(text);
  const size_t end = place_of(known);  // behind the last token's place
  if (text.is_lost || count == 0 || text.computed + count != end || count > left) return;
  if (parts_.size() == plan_.logit_rows || stream.pages.size() * kPageTokens < end) return;
  stream.borders.grow(stream.tokens, kPageTokens);
  if (held_.known(stream.tokens, stream.borders, stream.pages) < text.computed) return;
  left -= count;
  parts_.push_back({.tokens = stream.tokens.last(count),
                    .pages = stream.pages,
                    .begin = text.computed,
                    .rows = text.rows,
                    .stream = &stream});
}

Result<void> PredictingStage::draft_first(std::span<DraftStream> streams) {
  parts_.clear();
  size_t left = plan_.batch_tokens;
  for (DraftStream& stream : streams) add_stream(stream, left);
  if (parts_.empty()) return {};
  if (auto ran = run_parts(); !ran) return ran;
  // Known tokens alone: those that the block has drafted it has computed with other rows.
  for (const Part& part : parts_) {
    held_.write_text(part.pages, part.stream->borders, part.begin,
                     part.stream->tokens.subspan(part.begin, part.tokens.size()));
    Text& text = texts_.at(part.stream->sequence);
    text.computed += part.tokens.size();
    text.rows.clear();
  }
  return read_drafts();
}

// The drafted token of each part that goes on, with the block's own row of the token before: at the
// next place, or at the same one.
Result<void> PredictingStage::draft_next() {
  size_t part = 0;
  for (size_t index = 0; index < parts_.size(); ++index) {
    Part next = parts_[index];
    next.begin = place_of(next.begin + next.tokens.size());
    next.tokens = std::span(next.stream->drafts).last(1);
    next.rows = std::span(own_rows_).subspan(index * columns_, columns_);
    const bool has_place = next.begin < next.pages.size() * kPageTokens;
    if (has_place && next.begin < limits_.positions) parts_[part++] = next;
  }
  parts_.resize(part);
  if (parts_.empty()) return {};
  if (auto ran = run_parts(); !ran) return ran;
  return read_drafts();
}

// Leaves the parts that go on, and their own rows. One whose logits are no numbers ends.
Result<void> PredictingStage::read_drafts() {
  const bool gives_rows = block_.hidden_width() > 0;
  own_rows_.clear();
  size_t part = 0;
  for (size_t row = 0; row < parts_.size(); ++row) {
    const auto found = likeliest_token(block_.logits(row), plan_.vocabulary_size);
    if (!found) return std::unexpected(found.error());
    const std::optional<TokenId> likeliest = *found;
    if (!likeliest) continue;
    std::vector<TokenId>& drafts = parts_[row].stream->drafts;
    const std::span<const TokenId> tokens = limits_.logit_tokens;
    drafts.push_back(tokens.empty() ? *likeliest : tokens[static_cast<size_t>(*likeliest)]);
    if (!gives_rows || drafts.size() >= parts_[row].stream->most) continue;
    own_rows_.resize(own_rows_.size() + columns_);
    auto read = read_own_row(batch_.logit_tokens[row], std::span(own_rows_).last(columns_));
    if (!read) return read;
    parts_[part++] = parts_[row];
  }
  parts_.resize(part);
  return {};
}

Result<void> PredictingStage::draft(std::span<DraftStream> streams) {
  if (auto drafted = draft_first(streams); !drafted) return drafted;
  while (!parts_.empty()) {
    if (auto drafted = draft_next(); !drafted) return drafted;
  }
  return {};
}

}  // namespace lockstep
