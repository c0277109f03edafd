// Passes of the engine's loop, as the executor computes them: one more may begin before the last
// one's tokens are known.
#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/serving/engine_loop.h"

namespace lockstep {

Result<void> EngineLoop::begin_pass() {
  if (hooks_.before) {
    if (auto going = hooks_.before(); !going) return going;
  }
  return executor_.begin(batch_);
}

Result<void> EngineLoop::compute(const Schedule& schedule, bool has_begun) {
  if (!has_begun) {
    if (auto begun = begin_pass(); !begun) return begun;
  }
  if (auto ahead = begin_ahead(schedule); !ahead) return ahead;
  return executor_.finish();
}

// The batch of the pass that the scheduler has formed. True: it has begun ahead.
bool EngineLoop::take_ahead(const Schedule& schedule) {
  if (!std::exchange(ahead_, false)) {
    fill_batch(schedule);
    return false;
  }
  std::swap(batch_, ahead_batch_);
  return true;
}

bool EngineLoop::picks_plainly(const Schedule& schedule) const {
  return std::ranges::all_of(schedule.chunks, [&](const Chunk& chunk) {
    return chunk.ended || by_sequence_.at(chunk.sequence)->picks_plainly();
  });
}

bool EngineLoop::stage_reads_rows_of(const Schedule& schedule) const {
  if (drafters_.stage == nullptr || !drafters_.stage->reads_rows()) return false;
  return std::ranges::any_of(schedule.chunks, [&](const Chunk& chunk) {
    return !chunk.ended && uses_engines(*by_sequence_.at(chunk.sequence));
  });
}

// While the pass computes. GPUs clear no pages, so none need be cleared again where the pass is not
// begun after all.
Result<void> EngineLoop::begin_ahead(const Schedule& schedule) {
  if (!executor_.begins_ahead() || stage_waits_ || !picks_plainly(schedule)) return {};
  if (stage_reads_rows_of(schedule)) return {};
  if (hooks_.before && !hooks_.before()) return {};  // the next pass asks again, and fails
  const Schedule* const promised = scheduler_.promise();
  if (promised == nullptr) return {};
  fill_ahead(schedule, *promised);
  const auto begun = executor_.begin_ahead(ahead_batch_);
  if (!begun) return std::unexpected(begun.error());
  ahead_ = *begun;
  is_ahead_wrong_ = false;
  if (!ahead_) {
    scheduler_.withdraw();
    return {};
  }
  counters_.steps_ahead.fetch_add(1, std::memory_order_relaxed);
  return {};
}

// Each chunk of the schedule has one token and one row, and the promised ones are those of them
// that go on, in the same order.
void EngineLoop::fill_ahead(const Schedule& schedule, const Schedule& promised) {
  Batch& batch = ahead_batch_;
  batch.clear();
  batch.cleared_pages = promised.cleared_pages;
  if (drafters_.stage != nullptr) drafters_.stage->clear_pages(promised.cleared_pages);
  auto next = promised.chunks.begin();
  for (size_t row = 0; row < schedule.chunks.size(); ++row) {
    if (schedule.chunks[row].ended) continue;
    const Chunk& chunk = *next++;
    const auto slot = static_cast<uint32_t>(batch.sequence_count());
    for (const PageTable& table : scheduler_.tables(chunk.sequence)) {
      batch.page_tables.emplace_back(table.pages);
    }
    batch.logit_tokens.push_back(slot);
    batch.draws.push_back(by_sequence_.at(chunk.sequence)->draw_request(1));
    batch.picked_rows.push_back(static_cast<uint32_t>(row));
    batch.tokens.push_back({.token = 0,
                            .position = static_cast<uint32_t>(chunk.begin),
                            .sequence = slot,
                            .segment = 1});
  }
  batch.generated_tokens = batch.tokens.size();
}

// The rank picks as the sampler does, bit for bit: otherwise it is a fault of ours, or the rank's.
void EngineLoop::check_pick(size_t row, TokenId token) {
  if (!ahead_ || executor_.pick(row) == token) return;
  is_ahead_wrong_ = true;
  log_surely([&] {
    spdlog::error("a pass has begun with token {} where {} was picked; it is computed again",
                  executor_.pick(row), token);
  });
}

// Finishes a pass that has begun ahead and drops its results, if all of its sequences have ended or
// it has begun with a token that was not picked.
void EngineLoop::drop_ahead_if_void() {
  if (!ahead_ || (!is_ahead_wrong_ && scheduler_.has_promised())) return;
  ahead_ = false;
  if (is_ahead_wrong_) counters_.steps_repeated.fetch_add(1, std::memory_order_relaxed);
  scheduler_.withdraw();
  if (auto ended = executor_.finish(); !ended) fail(std::move(ended.error()));
}

}  // namespace lockstep
