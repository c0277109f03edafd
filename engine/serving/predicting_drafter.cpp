#include "engine/serving/predicting_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/kernels/attention.h"

namespace lockstep {
namespace {

// The most tokens that wait for the pass that drafts, which computes them as generated ones.
constexpr size_t kKeptMost = 16;

}  // namespace

PredictingDrafter::PredictingDrafter(Executor& model, Executor& block, const Plan& plan,
                                     HiddenForm given, size_t positions)
    : model_(model),
      block_(block),
      plan_(plan),
      given_(given),
      columns_(plan.given_columns),
      positions_(positions) {
  CHECK(columns_ > 0 && columns_ == model.hidden_width(), "rows of {} columns for a block of {}",
        model.hidden_width(), columns_);
}

void PredictingDrafter::clear_pages(std::span<const uint32_t> pages) {
  cleared_.insert(cleared_.end(), pages.begin(), pages.end());
}

size_t PredictingDrafter::followed(uint64_t sequence) const {
  const auto found = texts_.find(sequence);
  if (found == texts_.end() || found->second.is_lost) return 0;
  return found->second.computed + kept_tokens(found->second);
}

// The row of position p is given with token p + 1.
Result<void> PredictingDrafter::keep_rows(const Passed& passed, Text& text) {
  if (passed.begin == 0) text = {.rows = std::vector<float>(columns_)};
  for (size_t position = passed.begin; position < passed.begin + passed.count; ++position) {
    const size_t next = text.computed + kept_tokens(text);
    if (position + 1 < next) continue;
    if (position + 1 >= passed.tokens.size()) break;
    text.is_lost = text.is_lost || position + 1 > next;
    if (text.is_lost) return {};
    text.rows.resize(text.rows.size() + columns_);
    const size_t token = passed.first_token + position - passed.begin;
    auto read = model_.read_hidden_rows(token, std::span(text.rows).last(columns_), given_);
    if (!read) return read;
  }
  return {};
}

Result<void> PredictingDrafter::follow(std::span<const Passed> passed) {
  for (const Passed& each : passed) {
    Text& text = texts_[each.sequence];
    if (auto kept = keep_rows(each, text); !kept) return kept;
  }
  const size_t most = plan_.batch_tokens;
  for (const Passed& each : passed) {
    Text& text = texts_[each.sequence];
    while (kept_tokens(text) > kKeptMost && !text.is_lost) {
      // The last one is for the pass that drafts.
      const size_t count = std::min(most, kept_tokens(text) - 1);
      parts_ = {{.text = &text,
                 .tokens = each.tokens.subspan(text.computed, count),
                 .pages = each.pages,
                 .begin = text.computed,
                 .rows = std::span(text.rows).first(count * columns_)}};
      if (auto ran = run_parts(); !ran) return ran;
      text.computed += count;
      text.rows.erase(text.rows.begin(),
                      text.rows.begin() + static_cast<ptrdiff_t>(count * columns_));
    }
  }
  return {};
}

void PredictingDrafter::add_part(const Part& part) {
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
Result<void> PredictingDrafter::run_parts() {
  batch_.clear();
  batch_.cleared_pages = std::exchange(cleared_, {});
  for (const Part& part : parts_) {
    add_part(part);
    if (part.stream != nullptr) batch_.generated_tokens = batch_.tokens.size();
  }
  return block_.run(batch_);
}

// One pass over all that the block lacks of the texts, up to their last tokens.
Result<void> PredictingDrafter::draft_first(std::span<Stream> streams) {
  parts_.clear();
  size_t left = plan_.batch_tokens;
  for (Stream& stream : streams) {
    stream.drafts.clear();
    const size_t known = stream.tokens.size();
    const auto found = texts_.find(stream.sequence);
    if (stream.most == 0 || found == texts_.end() || found->second.is_lost) continue;
    Text& text = found->second;
    const size_t count = kept_tokens(text);
    const bool is_followed = count > 0 && text.computed + count == known;
    if (!is_followed || count > left || known > positions_) continue;
    if (parts_.size() == plan_.logit_rows) break;
    left -= count;
    parts_.push_back({.text = &text,
                      .tokens = stream.tokens.last(count),
                      .pages = stream.pages,
                      .begin = text.computed,
                      .rows = text.rows,
                      .stream = &stream});
  }
  if (parts_.empty()) return {};
  if (auto ran = run_parts(); !ran) return ran;
  return read_drafts();
}

// The drafted token of each part that goes on, with the block's own row of the token before.
Result<void> PredictingDrafter::draft_next() {
  size_t part = 0;
  for (size_t index = 0; index < parts_.size(); ++index) {
    Part next = parts_[index];
    next.begin += next.tokens.size();
    next.tokens = std::span(next.stream->drafts).last(1);
    next.rows = std::span(own_rows_).subspan(index * columns_, columns_);
    const bool has_place = next.begin < next.pages.size() * kPageTokens && next.begin < positions_;
    if (has_place && next.stream->drafts.size() < next.stream->most) parts_[part++] = next;
  }
  parts_.resize(part);
  if (parts_.empty()) return {};
  if (auto ran = run_parts(); !ran) return ran;
  return read_drafts();
}

// Parts whose logits are no numbers end. Own rows are read before anything else runs.
Result<void> PredictingDrafter::read_drafts() {
  const bool gives_rows = block_.hidden_width() > 0;
  own_rows_.clear();
  size_t part = 0;
  for (size_t row = 0; row < parts_.size(); ++row) {
    auto logits = block_.logits(row).all();
    if (!logits) return std::unexpected(logits.error());
    const auto likeliest = std::ranges::max_element(*logits);
    if (!std::isfinite(*likeliest)) continue;
    std::vector<TokenId>& drafts = parts_[row].stream->drafts;
    drafts.push_back(static_cast<TokenId>(likeliest - logits->begin()));
    if (!gives_rows || drafts.size() == parts_[row].stream->most) continue;
    own_rows_.resize(own_rows_.size() + columns_);
    auto read = block_.read_hidden_rows(batch_.logit_tokens[row],
                                        std::span(own_rows_).last(columns_), given_);
    if (!read) return read;
    parts_[part++] = parts_[row];
  }
  parts_.resize(part);
  return {};
}

Result<void> PredictingDrafter::draft(std::span<Stream> streams) {
  if (auto drafted = draft_first(streams); !drafted) return drafted;
  for (Stream& stream : streams) {
    const auto found = texts_.find(stream.sequence);
    if (stream.drafts.empty() || found == texts_.end()) continue;
    found->second.computed = stream.tokens.size();
    found->second.rows.clear();
  }
  while (!parts_.empty()) {
    if (auto drafted = draft_next(); !drafted) return drafted;
  }
  return {};
}

}  // namespace lockstep
