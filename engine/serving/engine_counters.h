// The engine's counters: written by its thread, read by scrapes, never locked.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/base/histogram.h"
#include "engine/interface/request.h"
#include "engine/interface/statistics.h"

namespace lockstep {

struct EngineCounters {
  EngineCounters();

  // Copies everything but the load's progress and the sizes of memory.
  void fill(EngineStatistics& statistics) const;

  std::atomic<uint64_t> requests_running = 0;
  std::atomic<uint64_t> requests_waiting = 0;
  std::atomic<uint64_t> finished[kFinishReasonCount] = {};  // by FinishReason
  std::atomic<uint64_t> unusable_submissions = 0;           // in a row
  std::atomic<uint64_t> waiting_prompt_tokens = 0;
  std::atomic<uint64_t> rejected[kRejectionCount] = {};  // by Rejection
  std::atomic<uint64_t> prompt_tokens = 0;
  std::atomic<uint64_t> generated_tokens = 0;
  struct Drafts {
    std::atomic<uint64_t> drafts = 0;
    std::atomic<uint64_t> tokens[kDraftTokensMost] = {};           // by place in the draft
    std::atomic<uint64_t> accepted_tokens[kDraftTokensMost] = {};  // of them
  };
  Drafts drafts[kDraftSourceCount];       // by DraftSource
  std::atomic<double> stage_seconds = 0;  // of drafters' own passes
  std::atomic<uint64_t> kv_pages = 0;
  std::atomic<uint64_t> kv_pages_free = 0;
  std::atomic<uint64_t> kv_pages_cached = 0;
  std::atomic<uint64_t> kv_evictions = 0;
  std::atomic<uint64_t> prefix_query_tokens = 0;
  std::atomic<uint64_t> prefix_hit_tokens = 0;
  std::atomic<uint64_t> preemptions = 0;
  std::atomic<uint64_t> state_slots = 0;
  std::atomic<uint64_t> state_slots_free = 0;
  std::atomic<uint64_t> state_checkpoints = 0;
  std::atomic<uint64_t> state_hits = 0;
  std::atomic<uint64_t> state_evictions = 0;
  std::atomic<uint64_t> stored_tokens = 0;
  std::atomic<double> stored_seconds = 0;
  std::atomic<uint64_t> steps = 0;
  std::atomic<uint64_t> steps_ahead = 0;     // begun before the last one's tokens were known
  std::atomic<uint64_t> steps_repeated = 0;  // of them computed again
  Histogram time_to_first_token_seconds;
  Histogram inter_token_seconds;
  Histogram queue_seconds;
  Histogram request_seconds;
  Histogram request_prompt_tokens;
  Histogram request_generated_tokens;
  Histogram step_seconds;
  Histogram step_tokens;
  Histogram step_sequences;
};

}  // namespace lockstep
