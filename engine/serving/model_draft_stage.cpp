#include "engine/serving/model_draft_stage.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/check.h"
#include "engine/drafting/drafter.h"
#include "engine/kernels/attention.h"

namespace lockstep {
namespace {

// That streams are held up at once while a text is read for one of them, and the least tokens of
// it.
constexpr double kReadingSeconds = 0.1;
constexpr size_t kReadingLeast = 32;
// A stream that lacks no more tokens was drafted before: they are computed as generated ones are.
constexpr size_t kGeneratedMost = kDraftTokensMost + 1;

}  // namespace

ModelDraftStage::ModelDraftStage(Executor& executor, const Limits& limits)
    : executor_(executor),
      limits_(limits),
      held_(limits.model_pages, kPageTokens),
      turns_(limits.model_pages) {
  parts_.reserve(limits.sequences);
}

Result<void> ModelDraftStage::draft(std::span<DraftStream> streams) {
  ++turn_;
  parts_.clear();
  for (DraftStream& stream : streams) add_part(stream);
  share_first_pass();
  while (std::ranges::any_of(parts_, [](const Part& part) { return part.count > 0; })) {
    if (auto ran = run_pass(); !ran) return ran;
    size_t row = 0;
    for (Part& part : parts_) {
      if (part.count == 0) continue;
      note_written(part);
      part.begin += part.count;
      part.count = part.is_read && read_draft(part, row++) ? 1 : 0;
    }
  }
  return {};
}

size_t ModelDraftStage::held_tokens(DraftStream& stream) const {
  stream.borders.grow(stream.tokens, kPageTokens);
  return held_.known(stream.tokens, stream.borders, stream.pages);
}

double ModelDraftStage::reading_seconds(DraftStream& stream) const {
  const size_t lack = stream.tokens.size() - held_tokens(stream);
  return lack > kGeneratedMost ? static_cast<double>(lack) * token_seconds_ : 0;
}

void ModelDraftStage::rest() {
  pass_seconds_ *= kKeptByRest;
}

// The last known token is always computed: its row is the first drafted token's.
void ModelDraftStage::add_part(DraftStream& stream) {
  stream.drafts.clear();
  const size_t known = stream.tokens.size();
  if (known + stream.most > limits_.positions) return;
  const size_t held = held_tokens(stream);
  Part part = {.stream = &stream,
               .pages = {stream.pages.begin(), stream.pages.end()},
               .begin = std::min(held, known - 1)};
  const size_t end = known + stream.most - 1;
  if (part.pages.size() * kPageTokens < end) {
    part.pages.push_back(static_cast<uint32_t>(limits_.model_pages + parts_.size()));
  }
  CHECK(part.pages.size() * kPageTokens >= end, "{} pages for {} tokens and {} drafted ones",
        stream.pages.size(), known, stream.most);
  parts_.push_back(std::move(part));
}

// Streams that were drafted before go first; then texts are read, the shortest one first.
void ModelDraftStage::share_first_pass() {
  const auto lack = [](const Part& part) { return part.stream->tokens.size() - part.begin; };
  std::ranges::stable_sort(parts_, {}, lack);
  size_t left = limits_.batch_tokens;
  const double affordable =
      token_seconds_ > 0 ? kReadingSeconds / token_seconds_ : 2.0 * kReadingLeast;
  size_t reading_left =
      std::max(kReadingLeast, static_cast<size_t>(std::min(affordable, static_cast<double>(left))));
  for (Part& part : parts_) {
    const size_t wanted = lack(part);
    const bool is_reading = wanted > kGeneratedMost;
    part.count = std::min({wanted, left, is_reading ? reading_left : left});
    if (!takes_pages(part)) part.count = 0;
    part.is_read = part.count == wanted;
    left -= part.count;
    if (is_reading) reading_left -= part.count;
  }
}

// Two sequences may hold one page that neither has computed for the smaller model: one of them
// writes to it, and the other waits.
bool ModelDraftStage::takes_pages(const Part& part) {
  if (part.count == 0) return true;
  const size_t last =
      std::min((part.begin + part.count - 1) / kPageTokens, part.stream->pages.size() - 1);
  for (size_t page = part.begin / kPageTokens; page <= last; ++page) {
    if (turns_[part.pages[page]] == turn_) return false;
  }
  for (size_t page = part.begin / kPageTokens; page <= last; ++page) {
    turns_[part.pages[page]] = turn_;
  }
  return true;
}

TokenId ModelDraftStage::token(const Part& part, size_t position) {
  const DraftStream& stream = *part.stream;
  const size_t known = stream.tokens.size();
  return position < known ? stream.tokens[position] : stream.drafts[position - known];
}

void ModelDraftStage::add_tokens(const Part& part) {
  const auto slot = static_cast<uint32_t>(batch_.sequence_count());
  batch_.page_tables.emplace_back(part.pages);
  for (size_t position = part.begin; position < part.begin + part.count; ++position) {
    const TokenId known = token(part, position);
    const bool is_read = static_cast<size_t>(known) < limits_.draft_vocabulary;
    batch_.tokens.push_back({.token = is_read ? known : 0,
                             .position = static_cast<uint32_t>(position),
                             .sequence = slot});
  }
}

Result<void> ModelDraftStage::run_pass() {
  batch_.clear();
  held_.take_cleared(batch_.cleared_pages);
  bool is_generated = true;
  for (const Part& part : parts_) {
    if (part.count == 0) continue;
    is_generated = is_generated && part.count <= kGeneratedMost;
    add_tokens(part);
    if (is_generated) batch_.generated_tokens = batch_.tokens.size();
    if (part.is_read) {
      batch_.logit_tokens.push_back(static_cast<uint32_t>(batch_.tokens.size() - 1));
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  auto ran = executor_.run(batch_);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (batch_.tokens.size() <= 2 * batch_.sequence_count()) {
    add_time(taken.count(), pass_seconds_);
  } else {
    add_time(taken.count() / static_cast<double>(batch_.tokens.size()), token_seconds_);
  }
  return ran;
}

// Tokens in an own page are computed again once the sequence has one for them, and so are those
// behind a border of pages that only drafted tokens have reached.
void ModelDraftStage::note_written(const Part& part) {
  const DraftStream& stream = *part.stream;
  const size_t pages = std::min(stream.pages.size(), stream.borders.count());
  const size_t end = std::min(part.begin + part.count, pages * kPageTokens);
  written_.clear();
  for (size_t position = part.begin; position < end; ++position) {
    written_.push_back(token(part, position));
  }
  held_.write_text(stream.pages, stream.borders, part.begin, written_);
}

// Whether another token is to be drafted behind it.
bool ModelDraftStage::read_draft(Part& part, size_t row) {
  const auto likeliest = likeliest_token(executor_.logits(row), limits_.vocabulary);
  if (!likeliest || !*likeliest) return false;  // where it has failed, the next pass says so
  std::vector<TokenId>& drafts = part.stream->drafts;
  drafts.push_back(**likeliest);
  return drafts.size() < part.stream->most;
}

}  // namespace lockstep
