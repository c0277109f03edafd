#include "engine/serving/engine_counters.h"

#include <array>

namespace lockstep {
namespace {

constexpr std::array kFirstTokenSeconds = {.001, .005, .01, .02, .04, .06, .08, .1,  .25,  .5,  .75,
                                           1.,   2.5,  5.,  7.5, 10., 20., 40., 80., 160., 640.};
constexpr std::array kTokenSeconds = {.001, .002, .005, .0075, .01, .015, .02, .025, .05, .075,
                                      .1,   .15,  .2,   .3,    .5,  .75,  1.,  2.5,  5.,  10.};
constexpr std::array kQueueSeconds = {.001, .005, .01, .025, .05, .1,   .25,  .5,   1.,   2.5,
                                      5.,   10.,  20., 30.,  60., 120., 300., 600., 1800.};
constexpr std::array kRequestSeconds = {.005, .01, .025, .05,  .1,   .25,  .5,    .8,   1.,
                                        1.5,  2.,  2.5,  5.,   10.,  15.,  20.,   30.,  40.,
                                        50.,  60., 120., 240., 480., 960., 1920., 7680.};
constexpr std::array kRequestTokens = {1.,    2.,    5.,    10.,  20.,  50.,  100.,  200.,  500.,
                                       1000., 2000., 5000., 10e3, 20e3, 50e3, 100e3, 200e3, 500e3};
constexpr std::array kStepTokens = {1.,   2.,   4.,   8.,    16.,   32.,  64.,
                                    128., 256., 512., 1024., 2048., 4096.};
constexpr std::array kStepSequences = {1., 2., 4., 8., 16., 32., 64., 128., 256.};

}  // namespace

EngineCounters::EngineCounters()
    : time_to_first_token_seconds(kFirstTokenSeconds),
      inter_token_seconds(kTokenSeconds),
      queue_seconds(kQueueSeconds),
      request_seconds(kRequestSeconds),
      request_prompt_tokens(kRequestTokens),
      request_generated_tokens(kRequestTokens),
      step_seconds(kTokenSeconds),
      step_tokens(kStepTokens),
      step_sequences(kStepSequences) {}

void EngineCounters::fill(EngineStatistics& statistics) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  statistics.requests_running = requests_running.load(kRelaxed);
  statistics.requests_waiting = requests_waiting.load(kRelaxed);
  statistics.finished_stop = finished[static_cast<size_t>(FinishReason::kStop)].load(kRelaxed);
  statistics.finished_length = finished[static_cast<size_t>(FinishReason::kLength)].load(kRelaxed);
  statistics.finished_cancelled =
      finished[static_cast<size_t>(FinishReason::kCancelled)].load(kRelaxed);
  statistics.finished_error = finished[static_cast<size_t>(FinishReason::kError)].load(kRelaxed);
  statistics.finished_deadline =
      finished[static_cast<size_t>(FinishReason::kDeadline)].load(kRelaxed);
  statistics.finished_displaced =
      finished[static_cast<size_t>(FinishReason::kDisplaced)].load(kRelaxed);
  statistics.finished_invalid_request =
      finished[static_cast<size_t>(FinishReason::kInvalidRequest)].load(kRelaxed);
  statistics.unusable_submissions = unusable_submissions.load(kRelaxed);
  for (size_t reason = 0; reason < kRejectionCount; ++reason) {
    statistics.rejected[reason] = rejected[reason].load(kRelaxed);
  }
  statistics.waiting_prompt_tokens = waiting_prompt_tokens.load(kRelaxed);
  statistics.prompt_tokens = prompt_tokens.load(kRelaxed);
  statistics.generated_tokens = generated_tokens.load(kRelaxed);
  for (size_t source = 0; source < kDraftSourceCount; ++source) {
    DraftStatistics& counted = statistics.drafts[source];
    counted.drafts = drafts[source].drafts.load(kRelaxed);
    for (size_t place = 0; place < kDraftTokensMost; ++place) {
      counted.tokens[place] = drafts[source].tokens[place].load(kRelaxed);
      counted.accepted_tokens[place] = drafts[source].accepted_tokens[place].load(kRelaxed);
    }
  }
  statistics.draft_stage_seconds = stage_seconds.load(kRelaxed);
  statistics.kv_pages = kv_pages.load(kRelaxed);
  statistics.kv_pages_free = kv_pages_free.load(kRelaxed);
  statistics.kv_pages_cached = kv_pages_cached.load(kRelaxed);
  statistics.kv_evictions = kv_evictions.load(kRelaxed);
  statistics.prefix_query_tokens = prefix_query_tokens.load(kRelaxed);
  statistics.prefix_hit_tokens = prefix_hit_tokens.load(kRelaxed);
  statistics.preemptions = preemptions.load(kRelaxed);
  statistics.state_slots = state_slots.load(kRelaxed);
  statistics.state_slots_free = state_slots_free.load(kRelaxed);
  statistics.state_checkpoints = state_checkpoints.load(kRelaxed);
  statistics.state_hits = state_hits.load(kRelaxed);
  statistics.state_evictions = state_evictions.load(kRelaxed);
  statistics.stored_tokens = stored_tokens.load(kRelaxed);
  statistics.stored_seconds = stored_seconds.load(kRelaxed);
  statistics.steps = steps.load(kRelaxed);
  statistics.steps_ahead = steps_ahead.load(kRelaxed);
  statistics.steps_repeated = steps_repeated.load(kRelaxed);
  statistics.time_to_first_token_seconds = time_to_first_token_seconds.snapshot();
  statistics.inter_token_seconds = inter_token_seconds.snapshot();
  statistics.queue_seconds = queue_seconds.snapshot();
  statistics.request_seconds = request_seconds.snapshot();
  statistics.request_prompt_tokens = request_prompt_tokens.snapshot();
  statistics.request_generated_tokens = request_generated_tokens.snapshot();
  statistics.step_seconds = step_seconds.snapshot();
  statistics.step_tokens = step_tokens.snapshot();
  statistics.step_sequences = step_sequences.snapshot();
}

}  // namespace lockstep
