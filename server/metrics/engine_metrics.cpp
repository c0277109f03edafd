#include <algorithm>

#include "server/metrics/families.h"
#include "server/options/version.h"

namespace lockstep {
namespace {

using Families = std::vector<prometheus::MetricFamily>;

double real(uint64_t count) {
  return static_cast<double>(count);
}

double load_ratio(const LoadProgress& load) {
  if (load.ready) return 1;
  return load.bytes_total == 0 ? 0 : real(load.bytes_done) / real(load.bytes_total);
}

void add_requests(const EngineStatistics& statistics, const MetricLabels& model,
                  Families& families) {
  const auto finished = [&](uint64_t count, const char* reason) {
    return Sample{real(count), {model[0], {"finish_reason", reason}}};
  };
  const auto rejected = [&](Rejection reason, const char* name) {
    return Sample{real(statistics.rejected[static_cast<size_t>(reason)]),
                  {model[0], {"reason", name}}};
  };
  families.push_back(gauge_family("lockstep_requests_running", "Requests in the running batch.",
                                  {{real(statistics.requests_running), model}}));
  families.push_back(gauge_family("lockstep_requests_waiting",
                                  "Requests that wait for a place in the batch.",
                                  {{real(statistics.requests_waiting), model}}));
  families.push_back(gauge_family("lockstep_requests_waiting_prompt_tokens",
                                  "Prompt tokens of requests that wait for their first pass.",
                                  {{real(statistics.waiting_prompt_tokens), model}}));
  families.push_back(counter_family(
      "lockstep_requests_total", "Requests that have ended, by how they ended.",
      {finished(statistics.finished_stop, "stop"), finished(statistics.finished_length, "length"),
       finished(statistics.finished_cancelled, "cancelled"),
       finished(statistics.finished_error, "error"),
       finished(statistics.finished_deadline, "deadline"),
       finished(statistics.finished_displaced, "displaced"),
       finished(statistics.finished_invalid_request, "invalid_request")}));
  families.push_back(gauge_family(
      "lockstep_unusable_submissions",
      "Requests in a row, up to now, whose output held no usable numbers; from 3 on not ready.",
      {{real(statistics.unusable_submissions), model}}));
  families.push_back(counter_family(
      "lockstep_requests_rejected_total", "Requests that were not taken, by why.",
      {rejected(Rejection::kLoading, "loading"), rejected(Rejection::kDraining, "draining"),
       rejected(Rejection::kQueueRequests, "queue_requests"),
       rejected(Rejection::kQueueTokens, "queue_tokens"), rejected(Rejection::kFailed, "failed")}));
  families.push_back(counter_family("lockstep_prompt_tokens_total",
                                    "Prompt tokens that were computed.",
                                    {{real(statistics.prompt_tokens), model}}));
  families.push_back(counter_family("lockstep_generation_tokens_total",
                                    "Tokens that were generated.",
                                    {{real(statistics.generated_tokens), model}}));
  families.push_back(histogram_family("lockstep_request_prompt_tokens",
                                      "Tokens of the prompts of requests that have ended.",
                                      statistics.request_prompt_tokens, model));
  families.push_back(histogram_family("lockstep_request_generation_tokens",
                                      "Tokens that were generated for requests that have ended.",
                                      statistics.request_generated_tokens, model));
}

// By place in the draft: the first token is accepted most often.
void add_drafts(const EngineStatistics& statistics, const MetricLabels& model, Families& families) {
  std::vector<Sample> drafts;
  std::vector<Sample> drafted;
  std::vector<Sample> accepted;
  for (const DraftStatistics& counted : statistics.drafts) {
    MetricLabels labels = {model[0], {"drafter", std::string(counted.drafter)}};
    drafts.push_back({real(counted.drafts), labels});
    labels.push_back({"position", ""});
    for (size_t place = 0; place < kDraftTokensMost; ++place) {
      labels.back().value = std::to_string(place);
      drafted.push_back({real(counted.tokens[place]), labels});
      accepted.push_back({real(counted.accepted_tokens[place]), labels});
    }
  }
  families.push_back(counter_family(
      "lockstep_drafts_total", "Drafts that passes have verified, each of one request.", drafts));
  families.push_back(counter_family("lockstep_drafted_tokens_total",
                                    "Tokens of these drafts, by their position in it, from 0.",
                                    drafted));
  families.push_back(counter_family("lockstep_accepted_draft_tokens_total",
                                    "Drafted tokens that were generated, by their position.",
                                    accepted));
  families.push_back(counter_family("lockstep_draft_passes_seconds_total",
                                    "Time of the draft model's passes, between those of the model.",
                                    {{statistics.draft_stage_seconds, model}}));
}

void add_times(const EngineStatistics& statistics, const MetricLabels& model, Families& families) {
  families.push_back(histogram_family("lockstep_time_to_first_token_seconds",
                                      "Time from a request's arrival to its first generated token.",
                                      statistics.time_to_first_token_seconds, model));
  families.push_back(histogram_family("lockstep_inter_token_latency_seconds",
                                      "Time between two generated tokens of a request.",
                                      statistics.inter_token_seconds, model));
  families.push_back(histogram_family("lockstep_request_queue_seconds",
                                      "Time a request waited before its first step.",
                                      statistics.queue_seconds, model));
  families.push_back(histogram_family("lockstep_request_duration_seconds",
                                      "Time from a request's arrival to its end.",
                                      statistics.request_seconds, model));
}

void add_steps(const EngineStatistics& statistics, const MetricLabels& model, Families& families) {
  families.push_back(gauge_family("lockstep_scheduler_heartbeat_timestamp_seconds",
                                  "When the engine's thread has last gone on, since 1970; 0 before "
                                  "the load.",
                                  {{statistics.heartbeat_timestamp_seconds, model}}));
  families.push_back(counter_family("lockstep_steps_total", "Passes through the model.",
                                    {{real(statistics.steps), model}}));
  families.push_back(counter_family("lockstep_steps_ahead_total",
                                    "Passes that began before the tokens of the one before were "
                                    "known.",
                                    {{real(statistics.steps_ahead), model}}));
  families.push_back(counter_family("lockstep_steps_repeated_total",
                                    "Passes that began ahead with another token than was picked, "
                                    "and were computed again: a fault, 0 without one.",
                                    {{real(statistics.steps_repeated), model}}));
  families.push_back(histogram_family("lockstep_step_duration_seconds",
                                      "Duration of a pass through the model.",
                                      statistics.step_seconds, model));
  families.push_back(histogram_family("lockstep_step_tokens", "Tokens that a pass computed.",
                                      statistics.step_tokens, model));
  families.push_back(histogram_family("lockstep_step_sequences",
                                      "Sequences that a pass computed: the batch size.",
                                      statistics.step_sequences, model));
}

// The labels bear the names that routers look for. Before the load there is no cache, and no
// series: labels that changed would be a second one.
prometheus::MetricFamily cache_config(const EngineStatistics& statistics, const ModelInfo& info,
                                      const MetricLabels& model) {
  std::vector<Sample> samples;
  if (statistics.kv_pages > 0) {
    samples.push_back({1,
                       {model[0],
                        {"block_size", std::to_string(info.kv_page_tokens)},
                        {"num_gpu_blocks", std::to_string(statistics.kv_pages)}}});
  }
  return gauge_family("lockstep_cache_config_info",
                      "The KV cache as labels of a constant 1: block_size, the tokens of a page; "
                      "num_gpu_blocks, its pages, wherever they lie.",
                      samples);
}

// Pages outside of the KV cache.
void add_tiers(const EngineStatistics& statistics, const MetricLabels& model, Families& families) {
  const TierStatistics& tiers = statistics.tiers;
  const auto by_tier = [&](uint64_t memory, uint64_t disk) {
    return std::vector<Sample>{{real(memory), {model[0], {"tier", "memory"}}},
                               {real(disk), {model[0], {"tier", "disk"}}}};
  };
  families.push_back(gauge_family("lockstep_cache_tier_limit_bytes",
                                  "Bytes that pages which make way in the KV cache may take.",
                                  by_tier(tiers.memory_bytes, tiers.disk_bytes_max)));
  families.push_back(gauge_family("lockstep_cache_tier_bytes", "Bytes that such pages take.",
                                  by_tier(tiers.memory_bytes_used, tiers.disk_bytes)));
  families.push_back(counter_family("lockstep_cache_tier_hits_total",
                                    "Pages that came back into the KV cache, by where they were.",
                                    by_tier(tiers.memory_hits, tiers.disk_hits)));
  families.push_back(counter_family("lockstep_cache_tier_saved_total",
                                    "Pages that were copied out of the KV cache.",
                                    {{real(tiers.pages_saved), model}}));
  families.push_back(counter_family("lockstep_cache_tier_state_hits_total",
                                    "Checkpoints of states that came back, by where they were.",
                                    by_tier(tiers.state_memory_hits, tiers.state_disk_hits)));
  families.push_back(counter_family("lockstep_cache_tier_states_saved_total",
                                    "Checkpoints of states that were copied out of their slots.",
                                    {{real(tiers.states_saved), model}}));
  families.push_back(counter_family("lockstep_cache_tier_hit_tokens_total",
                                    "Prompt tokens that came back and were not computed.",
                                    {{real(statistics.stored_tokens), model}}));
  families.push_back(counter_family("lockstep_cache_tier_saved_seconds_total",
                                    "Time that computing those would have taken, as passes went.",
                                    {{statistics.stored_seconds, model}}));
  families.push_back(counter_family("lockstep_cache_disk_written_bytes_total",
                                    "Bytes that were written to --cache-dir.",
                                    {{real(tiers.disk_bytes_written), model}}));
  families.push_back(counter_family("lockstep_cache_disk_read_bytes_total",
                                    "Bytes that were read from --cache-dir.",
                                    {{real(tiers.disk_bytes_read), model}}));
  families.push_back(counter_family("lockstep_cache_disk_evictions_total",
                                    "Files of --cache-dir that made way for others.",
                                    {{real(tiers.disk_evictions), model}}));
  const auto failed = [&](uint64_t count, const char* name) {
    return Sample{real(count), {model[0], {"reason", name}}};
  };
  families.push_back(counter_family(
      "lockstep_cache_disk_failures_total",
      "Pages that were not kept in --cache-dir or did not come back from it: the file could not be "
      "written, could not be read or believed, or as much had been written as an hour may.",
      {failed(tiers.disk_write_failures, "write"), failed(tiers.disk_unusable, "unusable"),
       failed(tiers.disk_writes_left_out, "limit")}));
}

void add_memory(const EngineStatistics& statistics, const ModelInfo& info,
                const MetricLabels& model, Families& families) {
  const auto labelled = [&](uint64_t value, const char* label, const char* name) {
    return Sample{real(value), {model[0], {label, name}}};
  };
  // The three are read one after the other.
  const uint64_t unused =
      std::min(statistics.kv_pages, statistics.kv_pages_free + statistics.kv_pages_cached);
  const uint64_t used = statistics.kv_pages - unused;
  families.push_back(gauge_family(
      "lockstep_kv_cache_pages",
      "Pages of the KV cache: used by requests, cached for later ones "
      "with the same prefix, free.",
      {labelled(used, "state", "used"), labelled(statistics.kv_pages_cached, "state", "cached"),
       labelled(statistics.kv_pages_free, "state", "free")}));
  families.push_back(gauge_family(
      "lockstep_kv_cache_usage_ratio", "Share of the KV cache's pages that requests use, 0 to 1.",
      {{statistics.kv_pages == 0 ? 0 : real(used) / real(statistics.kv_pages), model}}));
  families.push_back(counter_family("lockstep_kv_cache_evictions_total",
                                    "Cached pages that made way for others.",
                                    {{real(statistics.kv_evictions), model}}));
  add_tiers(statistics, model, families);
  families.push_back(counter_family("lockstep_prefix_cache_queries_total",
                                    "Prompt tokens that were looked up in the prefix cache.",
                                    {{real(statistics.prefix_query_tokens), model}}));
  families.push_back(counter_family("lockstep_prefix_cache_hits_total",
                                    "Prompt tokens that were found there and not computed.",
                                    {{real(statistics.prefix_hit_tokens), model}}));
  families.push_back(counter_family("lockstep_preemptions_total",
                                    "Sequences that gave up their pages, to be computed again.",
                                    {{real(statistics.preemptions), model}}));
  families.push_back(gauge_family("lockstep_kv_cache_page_tokens",
                                  "Tokens that a page of the KV cache holds.",
                                  {{static_cast<double>(info.kv_page_tokens), model}}));
  families.push_back(cache_config(statistics, info, model));
  families.push_back(gauge_family("lockstep_memory_bytes",
                                  "Memory that the engine holds, by what it is for.",
                                  {labelled(statistics.weight_bytes, "kind", "weights"),
                                   labelled(statistics.kv_bytes, "kind", "kv"),
                                   labelled(statistics.scratch_bytes, "kind", "scratch")}));
}

void add_states(const EngineStatistics& statistics, const MetricLabels& model, Families& families) {
  const auto slots = [&](uint64_t count, const char* state) {
    return Sample{real(count), {model[0], {"state", state}}};
  };
  // The three are read one after the other.
  const uint64_t unused =
      std::min(statistics.state_slots, statistics.state_slots_free + statistics.state_checkpoints);
  families.push_back(gauge_family(
      "lockstep_state_slots",
      "Slots for states of sequences: used by requests, checkpoints behind prefixes, free. 0 where "
      "the model keeps no states.",
      {slots(statistics.state_slots - unused, "used"),
       slots(statistics.state_checkpoints, "checkpoint"),
       slots(statistics.state_slots_free, "free")}));
  families.push_back(counter_family("lockstep_state_hits_total",
                                    "Sequences that went on from a checkpoint of a state.",
                                    {{real(statistics.state_hits), model}}));
  families.push_back(counter_family("lockstep_state_evictions_total",
                                    "Checkpoints that made way for other states.",
                                    {{real(statistics.state_evictions), model}}));
}

// Per rank; its node is a label of one constant series, so that the others keep their identity when
// ranks move.
void add_ranks(const EngineStatistics& statistics, const MetricLabels& model, Families& families) {
  std::vector<Sample> info;
  std::vector<Sample> memory;
  std::vector<Sample> wrong;
  std::vector<Sample> pages;
  std::vector<Sample> exchanged;
  std::vector<Sample> exchange;
  std::vector<Sample> waits;
  for (const RankStatistics& rank : statistics.ranks) {
    const MetricLabels labels = {model[0], {"rank", std::to_string(rank.rank)}};
    const auto labelled = [&](double value, const char* label, const char* name) {
      return Sample{value, {labels[0], labels[1], {label, name}}};
    };
    info.push_back({1,
                    {labels[0],
                     labels[1],
                     {"node", std::to_string(rank.node)},
                     {"gpu", rank.gpu_title},
                     {"workers", std::to_string(rank.worker_count)}}});
    memory.push_back(labelled(real(rank.weight_bytes), "kind", "weights"));
    memory.push_back(labelled(real(rank.kv_bytes), "kind", "kv"));
    memory.push_back(labelled(real(rank.scratch_bytes), "kind", "scratch"));
    if (rank.wrong_node_bytes) wrong.push_back({real(*rank.wrong_node_bytes), labels});
    pages.push_back(labelled(real(rank.pages.huge_1gib), "page", "huge_1gib"));
    pages.push_back(labelled(real(rank.pages.huge_2mib), "page", "huge_2mib"));
    pages.push_back(labelled(real(rank.pages.transparent), "page", "transparent"));
    pages.push_back(labelled(real(rank.pages.small), "page", "small"));
    exchanged.push_back({real(rank.exchange_bytes), labels});
    exchange.push_back({rank.exchange_seconds, labels});
    waits.push_back({rank.wait_seconds, labels});
  }
  families.push_back(gauge_family(
      "lockstep_rank_info",
      "The ranks, as labels of a constant 1; node -1: bound to none; gpu: where it computes.",
      info));
  families.push_back(gauge_family("lockstep_rank_memory_bytes",
                                  "Memory that a rank holds, by what it is for.", memory));
  families.push_back(gauge_family("lockstep_rank_wrong_node_bytes",
                                  "Weights of a rank that lay on another node after the load.",
                                  wrong));
  families.push_back(
      gauge_family("lockstep_rank_page_bytes", "Memory of a rank, by what its pages are.", pages));
  families.push_back(counter_family("lockstep_rank_collective_bytes_total",
                                    "Bytes that a rank sent to other ranks or read from them.",
                                    exchanged));
  families.push_back(counter_family("lockstep_rank_collective_seconds_total",
                                    "Time spent in exchange, mean over the rank's workers.",
                                    exchange));
  families.push_back(counter_family("lockstep_rank_barrier_wait_seconds_total",
                                    "Time spent at barriers, mean over the rank's workers.",
                                    waits));
}

// Adds the hosts that compute the model together; no series where this one does alone.
void add_hosts(const HostStatistics& hosts, const MetricLabels& model, Families& families) {
  const auto samples = [&](double value) {
    return hosts.count > 1 ? std::vector<Sample>{{value, model}} : std::vector<Sample>();
  };
  families.push_back(gauge_family("lockstep_hosts", "Hosts that compute the model together.",
                                  samples(real(hosts.count))));
  families.push_back(gauge_family("lockstep_hosts_together",
                                  "1 while all of them are there, 0 while this one waits for "
                                  "another group.",
                                  samples(hosts.together ? 1 : 0)));
  families.push_back(counter_family("lockstep_host_exchange_bytes_total",
                                    "Bytes that went to other hosts and came from them in passes.",
                                    samples(real(hosts.exchanged_bytes))));
  families.push_back(counter_family("lockstep_host_exchange_seconds_total",
                                    "Time in which this host's ranks waited for that.",
                                    samples(hosts.exchange_seconds)));
}

// Adds what the engine holds of the GPUs' memory and has of their time; no series where it computes
// on processors.
void add_gpus(const EngineStatistics& statistics, const MetricLabels& model, Families& families) {
  std::vector<Sample> memory;
  std::vector<Sample> seconds;
  for (const RankStatistics& rank : statistics.ranks) {
    if (!rank.gpu) continue;
    seconds.push_back({rank.gpu_seconds, {model[0], {"gpu", std::to_string(*rank.gpu)}}});
    const auto add = [&](uint64_t bytes, const char* kind) {
      memory.push_back(
          {real(bytes), {model[0], {"gpu", std::to_string(*rank.gpu)}, {"kind", kind}}});
    };
    add(rank.weight_bytes, "weights");
    add(rank.kv_bytes, "kv");
    add(rank.scratch_bytes - rank.host_scratch_bytes, "activations");
  }
  families.push_back(gauge_family("lockstep_gpu_memory_bytes",
                                  "Memory of a GPU that the engine holds, by what it is for.",
                                  memory));
  families.push_back(counter_family("lockstep_gpu_pass_seconds_total",
                                    "Time that a GPU took for its parts of passes, what it waited "
                                    "for other GPUs included.",
                                    seconds));
}

}  // namespace

Families engine_families(const EngineStatistics& statistics, const ModelInfo& info,
                         const std::string& model_name) {
  const MetricLabels model = {{"model", model_name}};
  Families families;
  families.push_back(gauge_family("lockstep_build_info",
                                  "The program's version, as a label of a constant 1.",
                                  {{1, {{"version", std::string(kVersion)}}}}));
  families.push_back(gauge_family("lockstep_model_info",
                                  "What is served, as labels of a constant 1.",
                                  {{1,
                                    {model[0],
                                     {"architecture", info.architecture},
                                     {"format", info.format},
                                     {"devices", info.devices},
                                     {"isa", info.instruction_set},
                                     {"arithmetic", info.arithmetic},
                                     {"kv_format", info.kv_format},
                                     {"strategy", info.strategy},
                                     {"fingerprint", info.fingerprint}}}}));
  families.push_back(gauge_family("lockstep_model_load_progress_ratio",
                                  "Share of the model that is loaded, from 0 to 1.",
                                  {{load_ratio(statistics.load), model}}));
  families.push_back(gauge_family("lockstep_model_load_seconds",
                                  "Time that loading the model took, so far or in all.",
                                  {{statistics.load.seconds, model}}));
  families.push_back(gauge_family("lockstep_model_load_bytes",
                                  "Bytes of weights that the load has read from the model file.",
                                  {{real(statistics.load.bytes_done), model}}));
  families.push_back(gauge_family(
      "lockstep_model_load_kept_bytes",
      "Bytes of weights that were taken over from an earlier process instead of being read.",
      {{real(statistics.load.bytes_kept), model}}));
  add_requests(statistics, model, families);
  add_drafts(statistics, model, families);
  add_times(statistics, model, families);
  add_steps(statistics, model, families);
  add_memory(statistics, info, model, families);
  add_states(statistics, model, families);
  add_ranks(statistics, model, families);
  add_hosts(statistics.hosts, model, families);
  add_gpus(statistics, model, families);
  return families;
}

}  // namespace lockstep
