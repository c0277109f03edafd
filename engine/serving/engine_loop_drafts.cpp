// Speculation in the engine's loop: what is drafted before a pass, and how it is counted.
#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <utility>

#include "engine/base/log.h"
#include "engine/graph/kv_layout.h"
#include "engine/serving/engine_loop.h"

namespace lockstep {
namespace {

// Tokens that drafters are told before one pass: a tenth of a millisecond, however long predictions
// and prompts are. One that has not been told all drafts nothing.
constexpr size_t kLearnedMost = 4096;
// But each is told so many: those that generate know their text, and others take it from none.
constexpr size_t kLearnedLeast = kDraftTokensMost + 1;
// And so many tokens of answers that have ended.
constexpr size_t kAnswersLearnedMost = 4096;

}  // namespace

// Only of sequences for which the scheduler expects it to pay.
Result<void> EngineLoop::propose_drafts() {
  learned_ = 0;
  staged_.clear();
  if (answers_) answers_->learn(kAnswersLearnedMost);
  for (const auto& [sequence, generation] : by_sequence_) {
    if (generation->started && generation->takes_drafts) propose_draft(*generation);
  }
  return run_stage();
}

// Long repetitions cost nothing and go first, then the stage, and where that does not pay short
// repetitions.
void EngineLoop::propose_draft(Generation& generation) {
  if (propose_forced(generation)) return;
  const bool stages = may_use_stage(generation);
  if (propose_by_row(generation, /*only_if_sure=*/stages)) return;
  if (stages) staged_.push_back(&generation);
}

// The engine's drafters, none of its own or of the caller's.
bool EngineLoop::uses_engines(const Generation& generation) const {
  return generation.request().speculation && !generation.request().make_drafter;
}

bool EngineLoop::may_use_stage(const Generation& generation) const {
  return drafters_.stage != nullptr && uses_engines(generation) &&
         scheduler_.draft_tokens_most(generation.sequence, DraftSource::kModel) > 0;
}

// The sequence's pages that keep all of its tokens. A stage asks for such (check_draft_models()).
std::span<const uint32_t> EngineLoop::whole_pages(SequenceId sequence) const {
  const auto group = whole_group(executor_.ranks().root_plan().kv.windows);
  return scheduler_.tables(sequence)[group.value_or(0)].pages;
}

// For all sequences at once, as many tokens as pay together.
Result<void> EngineLoop::run_stage() {
  stage_seconds_ = 0;
  stage_waits_ = false;
  if (staged_.empty()) return {};
  std::vector<SequenceId> sequences;
  std::vector<DraftStream> streams;
  std::erase_if(staged_, [&](Generation* generation) {
    const SequenceId sequence = generation->sequence;
    DraftStream stream = {.sequence = sequence,
                          .tokens = generation->tokens(),
                          .pages = whole_pages(sequence),
                          .borders = generation->borders,
                          .most = scheduler_.draft_tokens_most(sequence, DraftSource::kModel),
                          .drafts = {}};
    const double reading = drafters_.stage->reading_seconds(stream);
    if (!scheduler_.reading_pays(sequence, reading)) return true;
    sequences.push_back(sequence);
    streams.push_back(std::move(stream));
    return false;
  });
  const size_t most =
      scheduler_.shared_draft_tokens_most(sequences, drafters_.stage->pass_seconds());
  if (most == 0) {
    drafters_.stage->rest();
    return {};
  }
  stage_waits_ = true;
  if (ahead_) return {};  // they would come too late for the pass that has begun
  for (DraftStream& stream : streams) stream.most = std::min(stream.most, most);
  activity_.enter(LoopPhase::kDrafting);
  const auto begin = Generation::Clock::now();
  if (auto drafted = drafters_.stage->draft(streams); !drafted) return drafted;
  const std::chrono::duration<double> taken = Generation::Clock::now() - begin;
  stage_seconds_ = taken.count();
  counters_.stage_seconds.fetch_add(stage_seconds_, std::memory_order_relaxed);
  for (size_t index = 0; index < streams.size(); ++index) {
    Generation& generation = *staged_[index];
    const std::span<const TokenId> drafts = streams[index].drafts;
    const auto fitting = drafts.first(generation.fitting_drafts(drafts));
    if (fitting.empty()) continue;
    scheduler_.propose(generation.sequence, fitting, DraftSource::kModel);
    generation.draft_source = DraftSource::kModel;
  }
  activity_.enter(LoopPhase::kScheduling);
  return {};
}

// Lets the stage read of the pass what it drafts from; requests that have ended are none of its,
// nor those that want no drafts.
Result<void> EngineLoop::follow_pass(const Schedule& schedule) {
  if (drafters_.stage == nullptr || executor_.failure()) return {};
  std::vector<PassedChunk> passed;
  size_t first_token = 0;
  for (const Chunk& chunk : schedule.chunks) {
    const size_t token = std::exchange(first_token, first_token + chunk.count);
    const auto found = by_sequence_.find(chunk.sequence);
    if (found == by_sequence_.end() || found->second->pooled) continue;
    Generation& generation = *found->second;
    if (!uses_engines(generation)) continue;
    passed.push_back({.sequence = chunk.sequence,
                      .tokens = generation.tokens(),
                      .pages = whole_pages(chunk.sequence),
                      .borders = generation.borders,
                      .begin = chunk.begin,
                      .count = chunk.count,
                      .first_token = token});
  }
  if (passed.empty()) return {};
  const auto begin = Generation::Clock::now();
  auto followed = drafters_.stage->follow(passed);
  const std::chrono::duration<double> taken = Generation::Clock::now() - begin;
  stage_seconds_ += taken.count();
  counters_.stage_seconds.fetch_add(taken.count(), std::memory_order_relaxed);
  return followed;
}

// Its own text or one of its tenant's earlier answers, whichever repeats more.
bool EngineLoop::propose_by_row(Generation& generation, bool only_if_sure) {
  const std::span<const TokenId> own = own_draft(generation);
  const size_t own_match = own.empty() ? 0 : generation.drafter->match_length();
  const std::span<const TokenId> earlier = earlier_draft(generation, own_match);
  const bool is_earlier = !earlier.empty();
  const size_t match = is_earlier ? generation.answer_place->match : own_match;
  const std::span<const TokenId> drafts = is_earlier ? earlier : own;
  if (drafts.empty() || (only_if_sure && match < kSureMatch)) return false;
  const DraftSource source = is_earlier ? DraftSource::kAnswers : DraftSource::kDrafter;
  scheduler_.propose(generation.sequence, drafts, source);
  generation.draft_source = source;
  return true;
}

// A drafter that fails is asked no more: its request goes on without. Valid until the next draft.
std::span<const TokenId> EngineLoop::own_draft(Generation& generation) {
  if (!generation.asks_drafter) return {};
  const size_t most = scheduler_.draft_tokens_most(generation.sequence);
  if (most == 0) return {};
  std::span<const TokenId> drafts;
  try {
    drafts = draft(generation, most);
  } catch (const std::exception& error) {
    log_surely([&] {
      spdlog::error("request {} goes on without drafts: {}", generation.id(), error.what());
    });
    generation.drafter.reset();
  }
  if (generation.drafter != nullptr) return drafts;
  generation.asks_drafter = false;
  generation.takes_drafts = (drafters_.stage != nullptr || answers_) && uses_engines(generation);
  return {};
}

// Valid until the next one; of a place that repeats more tokens than that.
std::span<const TokenId> EngineLoop::earlier_draft(Generation& generation, size_t longer_than) {
  if (!answers_ || longer_than >= kMatchMost || !uses_engines(generation)) return {};
  const size_t most = scheduler_.draft_tokens_most(generation.sequence, DraftSource::kAnswers);
  if (most == 0) return {};
  earlier_drafts_.resize(most);
  const size_t count = answers_->draft(generation.answers, generation.tokens(),
                                       generation.answer_place, earlier_drafts_);
  if (count == 0 || generation.answer_place->match <= longer_than) return {};
  return fitting(generation, std::span(earlier_drafts_).first(count));
}

// An answer that has ended. The prompt's last tokens go with it, so that the same question finds
// it, but no more of them: who asks has them in the prompt where they are to be repeated.
void EngineLoop::remember(const Generation& generation) noexcept {
  if (!answers_ || !generation.request().speculation || generation.generated_count() < kGram) {
    return;
  }
  const size_t begin = generation.prompt_count() - std::min(generation.prompt_count(), kMatchMost);
  answers_->tell(generation.answers, std::span(generation.tokens()).subspan(begin));
}

// A text that the grammar leaves no other for is drafted before anything else is.
bool EngineLoop::propose_forced(Generation& generation) {
  if (!generation.request().grammar || !may_draft(generation.request())) return false;
  drafts_.resize(scheduler_.draft_tokens_most(generation.sequence, DraftSource::kGrammar));
  const size_t count = generation.forced_drafts(drafts_);
  if (count == 0) return false;
  scheduler_.propose(generation.sequence, std::span(drafts_).first(count), DraftSource::kGrammar);
  generation.draft_source = DraftSource::kGrammar;
  return true;
}

// The drafted tokens as far as they may come next; valid until the next draft.
std::span<const TokenId> EngineLoop::draft(Generation& generation, size_t most) {
  if (generation.drafter == nullptr) generation.drafter = make_drafter(generation);
  if (generation.drafter == nullptr) return {};
  if (!has_learned(generation)) return {};
  drafts_.resize(most);
  return fitting(generation, std::span(drafts_).first(generation.drafter->draft(drafts_)));
}

std::span<const TokenId> EngineLoop::fitting(Generation& generation,
                                             std::span<const TokenId> drafts) const {
  // A client's prediction may hold any number.
  const auto is_no_token = [&](TokenId token) {
    return token < 0 || static_cast<size_t>(token) >= vocabulary_size_;
  };
  const auto end = std::ranges::find_if(drafts, is_no_token);
  const std::span<const TokenId> tokens(drafts.begin(), end);
  return tokens.first(generation.fitting_drafts(tokens));
}

bool EngineLoop::may_draft(const Request& request) const {
  return request.speculation &&
         (request.make_drafter || drafters_.row != nullptr || drafters_.stage != nullptr);
}

std::unique_ptr<Drafter> EngineLoop::make_drafter(const Generation& generation) const {
  const Request& request = generation.request();
  if (!request.speculation) return nullptr;
  if (request.make_drafter) return request.make_drafter();
  return drafters_.row != nullptr ? drafters_.row->make(generation.queued_tokens()) : nullptr;
}

// Tells the drafter what it does not know of the prediction and the text, as much as may be before
// one pass.
bool EngineLoop::has_learned(Generation& generation) {
  size_t left = std::max(kLearnedMost - std::min(kLearnedMost, learned_), kLearnedLeast);
  const auto next = [&](std::span<const TokenId> tokens, size_t& told) {
    const auto piece = tokens.subspan(told, std::min(tokens.size() - told, left));
    told += piece.size();
    left -= piece.size();
    learned_ += piece.size();
    return piece;
  };
  const auto& prediction = generation.request().prediction;
  if (prediction && generation.drafter_expects < prediction->size()) {
    generation.drafter->expect(next(*prediction, generation.drafter_expects));
    if (generation.drafter_expects < prediction->size()) return false;
  }
  generation.drafter->add(next(generation.tokens(), generation.drafter_knows));
  return generation.drafter_knows == generation.tokens().size();
}

EngineCounters::Drafts& EngineLoop::counters_of(const Generation& generation) {
  return counters_.drafts[static_cast<size_t>(generation.draft_source)];
}

void EngineLoop::count_draft(Generation& generation, const Chunk& chunk) {
  if (chunk.drafted == 0) return;
  generation.drafted_tokens += static_cast<uint32_t>(chunk.drafted);
  EngineCounters::Drafts& counters = counters_of(generation);
  counters.drafts.fetch_add(1, std::memory_order_relaxed);
  for (size_t place = 0; place < chunk.drafted; ++place) {
    counters.tokens[place].fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace lockstep
