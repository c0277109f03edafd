// Counters and gauges of an engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/histogram.h"
#include "engine/drafting/drafter.h"

namespace lockstep {

struct LoadProgress {
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t bytes_kept = 0;  // of weights that were taken over from an earlier process, not read
  double seconds = 0;       // since load() began; stands still when it has ended
  bool ready = false;

  double bytes_per_second() const {
    return seconds > 0 ? static_cast<double>(bytes_done) / seconds : 0;
  }
};

// Bytes of an arena, or of several, by what their pages are.
struct PageBytes {
  uint64_t huge_1gib = 0;  // of the hugetlb pools
  uint64_t huge_2mib = 0;
  uint64_t transparent = 0;
  uint64_t small = 0;
};

// One rank's memory, and what its workers have spent on the other ranks.
struct RankStatistics {
  uint32_t rank = 0;  // among those of all hosts
  int node = -1;      // -1: its memory is bound to none
  // Gpu::index of the one that computes and whose memory holds the rank's; none: processors do.
  std::optional<int> gpu = {};
  std::string gpu_title;  // "gpu0 NVIDIA H200"; empty: on processors
  uint32_t worker_count = 0;
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  // The part in the host's memory: all, but of a GPU the logits where it does not hold them, and
  // among processors what it exchanges.
  uint64_t host_scratch_bytes = 0;
  // Weights in the host's memory that were found elsewhere than on `node` after the load; none: the
  // kernel does not say.
  std::optional<uint64_t> wrong_node_bytes;
  PageBytes pages;              // of all arenas in the host's memory
  uint64_t exchange_bytes = 0;  // sent to other ranks, or read from them
  double exchange_seconds = 0;  // mean over the rank's workers
  double wait_seconds = 0;      // at barriers; mean over the rank's workers
  // From handing a GPU its part of a pass until it was done, over all passes, by the host's clock;
  // what it waited for other GPUs included. 0: on processors.
  double gpu_seconds = 0;
};

// Pages outside of the KV cache, in memory and in files (docs/tiers.md).
struct TierStatistics {
  uint64_t memory_bytes = 0;  // set aside; 0: nothing is kept
  uint64_t memory_bytes_used = 0;
  uint64_t disk_bytes_max = 0;  // 0: there are no files
  uint64_t disk_bytes = 0;
  uint64_t pages_saved = 0;
  uint64_t memory_hits = 0;   // pages that were loaded, and had not been in files
  uint64_t disk_hits = 0;     // pages that were loaded, and had been read from files
  uint64_t states_saved = 0;  // checkpoints of states; and likewise
  uint64_t state_memory_hits = 0;
  uint64_t state_disk_hits = 0;
  uint64_t disk_bytes_written = 0;
  uint64_t disk_bytes_read = 0;
  uint64_t disk_evictions = 0;        // records that made way for others
  uint64_t disk_write_failures = 0;   // records that could not be written
  uint64_t disk_unusable = 0;         // records that could not be read or believed
  uint64_t disk_writes_left_out = 0;  // for the limit of an hour
};

// Why a request was not taken though nothing is wrong with it.
enum class Rejection { kLoading, kDraining, kQueueRequests, kQueueTokens, kFailed };
inline constexpr size_t kRejectionCount = 5;

// A snapshot of counters and gauges; taken without a lock that a step needs.
// Drafts of one source that passes have verified, each of one sequence.
struct DraftStatistics {
  std::string_view drafter;  // its name, or "none"; "grammar"
  uint64_t drafts = 0;
  std::array<uint64_t, kDraftTokensMost> tokens = {};           // by place in the draft
  std::array<uint64_t, kDraftTokensMost> accepted_tokens = {};  // of them
};

// The hosts that compute the model together, as this one sees them.
struct HostStatistics {
  uint64_t count = 1;
  bool together = true;          // all of them are there
  uint64_t exchanged_bytes = 0;  // sent to other hosts and received from them in passes
  double exchange_seconds = 0;   // in which ranks here waited for that
};

struct EngineStatistics {
  HostStatistics hosts;
  LoadProgress load;
  uint64_t requests_running = 0;
  uint64_t requests_waiting = 0;
  uint64_t waiting_prompt_tokens = 0;  // of requests that have not been part of a pass
  uint64_t finished_stop = 0;
  uint64_t finished_length = 0;
  uint64_t finished_cancelled = 0;
  uint64_t finished_error = 0;
  uint64_t finished_deadline = 0;
  uint64_t finished_displaced = 0;
  uint64_t finished_invalid_request = 0;
  uint64_t unusable_submissions = 0;  // in a row, up to now: see kUnusableSubmissionsMax
  std::array<uint64_t, kRejectionCount> rejected = {};  // by Rejection
  uint64_t prompt_tokens = 0;                           // computed, each once
  uint64_t generated_tokens = 0;
  std::array<DraftStatistics, kDraftSourceCount> drafts = {};  // by DraftSource
  double draft_stage_seconds =
      0;  // that drafters' own passes have taken, between those of the model
  uint64_t kv_pages = 0;
  uint64_t kv_pages_free = 0;        // that hold nothing
  uint64_t kv_pages_cached = 0;      // that hold a prefix and are used by no request
  uint64_t kv_evictions = 0;         // pages whose prefix made way
  uint64_t prefix_query_tokens = 0;  // of prompts that were looked up in the prefix cache
  uint64_t prefix_hit_tokens = 0;    // of them found there, and not computed
  uint64_t preemptions = 0;          // sequences that gave up their pages, to be computed again
  uint64_t state_slots = 0;          // for states of sequences; 0: the model keeps none
  uint64_t state_slots_free = 0;     // that hold nothing
  uint64_t state_checkpoints = 0;    // that hold the state behind a prefix
  uint64_t state_hits = 0;           // sequences that went on from one
  uint64_t state_evictions = 0;      // checkpoints that made way for other states
  TierStatistics tiers;
  uint64_t stored_tokens = 0;  // of prompts that were loaded from there, and not computed
  double stored_seconds = 0;   // that computing them would have taken, by the passes before
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  std::vector<RankStatistics> ranks;  // none before the memory is taken
  uint64_t steps = 0;
  uint64_t steps_ahead = 0;     // that began before the tokens of the one before were known
  uint64_t steps_repeated = 0;  // begun ahead with another token than was picked: a fault
  // The engine's thread has last shown that it goes on: how long ago, and when (seconds since 1970;
  // 0 before the load). It does so at least once a second when there is nothing to do.
  double heartbeat_age_seconds = 0;
  double heartbeat_timestamp_seconds = 0;
  HistogramSnapshot time_to_first_token_seconds;
  HistogramSnapshot inter_token_seconds;
  HistogramSnapshot queue_seconds;
  HistogramSnapshot request_seconds;           // from submission to the end
  HistogramSnapshot request_prompt_tokens;     // of requests that have ended
  HistogramSnapshot request_generated_tokens;  // of requests that have ended
  HistogramSnapshot step_seconds;
  HistogramSnapshot step_tokens;     // tokens of a pass
  HistogramSnapshot step_sequences;  // sequences of a pass
};

}  // namespace lockstep
