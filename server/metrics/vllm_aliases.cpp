#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "server/metrics/families.h"

namespace lockstep {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

struct Alias {
  std::string_view ours;
  std::string_view theirs;
};

// The one whose series have a position there as well.
constexpr std::string_view kAcceptedByPosition =
    "vllm:spec_decode_num_accepted_tokens_per_pos_total";

// Read off vLLM 0.33's own list. What it calls a percentage is a ratio there as well.
constexpr Alias kAliases[] = {
    {"lockstep_requests_running", "vllm:num_requests_running"},
    {"lockstep_requests_waiting", "vllm:num_requests_waiting"},
    {"lockstep_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"},
    {"lockstep_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
    {"lockstep_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
    {"lockstep_preemptions_total", "vllm:num_preemptions_total"},
    {"lockstep_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"lockstep_generation_tokens_total", "vllm:generation_tokens_total"},
    {"lockstep_requests_total", "vllm:request_success_total"},
    {"lockstep_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"lockstep_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"lockstep_request_duration_seconds", "vllm:e2e_request_latency_seconds"},
    {"lockstep_request_queue_seconds", "vllm:request_queue_time_seconds"},
    {"lockstep_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"lockstep_request_generation_tokens", "vllm:request_generation_tokens"},
    {"lockstep_step_tokens", "vllm:iteration_tokens_total"},
    {"lockstep_drafts_total", "vllm:spec_decode_num_drafts_total"},
    {"lockstep_drafted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
    {"lockstep_accepted_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
    {"lockstep_accepted_draft_tokens_total", kAcceptedByPosition},
};

const MetricFamily* find_family(const std::vector<MetricFamily>& families, std::string_view name) {
  const auto found = std::ranges::find(families, name, &MetricFamily::name);
  return found == families.end() ? nullptr : &*found;
}

// A client that left, a deadline that passed and a request that could not go on are aborts there.
std::string finished_reason(const std::string& reason) {
  const bool aborted = reason == "cancelled" || reason == "deadline" || reason == "invalid_request";
  return aborted ? "abort" : reason;
}

std::string model_of(const MetricFamily& family) {
  for (const auto& label : family.metric.empty() ? MetricLabels() : family.metric.front().label) {
    if (label.name == "model") return label.value;
  }
  return "";
}

// Other labels of ours divide what vLLM has as one number.
MetricLabels their_labels(const ClientMetric& metric, std::string_view name) {
  MetricLabels labels;
  for (const auto& label : metric.label) {
    if (label.name == "model") labels.push_back({"model_name", label.value});
    if (label.name == "finish_reason") {
      labels.push_back({"finished_reason", finished_reason(label.value)});
    }
    if (label.name == "position" && name == kAcceptedByPosition) labels.push_back(label);
  }
  labels.push_back({"engine", "0"});
  return labels;
}

void add_values(const ClientMetric& metric, ClientMetric& sum) {
  sum.counter.value += metric.counter.value;
  sum.gauge.value += metric.gauge.value;
  sum.histogram.sample_count += metric.histogram.sample_count;
  sum.histogram.sample_sum += metric.histogram.sample_sum;
  for (size_t index = 0; index < sum.histogram.bucket.size(); ++index) {
    sum.histogram.bucket[index].cumulative_count += metric.histogram.bucket[index].cumulative_count;
  }
}

MetricFamily alias_of(const MetricFamily& family, std::string_view name) {
  MetricFamily alias{std::string(name), family.help, family.type, {}};
  for (const ClientMetric& metric : family.metric) {
    MetricLabels labels = their_labels(metric, name);
    const auto same = std::ranges::find(alias.metric, labels, &ClientMetric::label);
    if (same != alias.metric.end()) {
      add_values(metric, *same);
      continue;
    }
    ClientMetric& added = alias.metric.emplace_back(metric);
    added.label = std::move(labels);
  }
  return alias;
}

double total(const MetricFamily& gauges) {
  double sum = 0;
  for (const ClientMetric& metric : gauges.metric) sum += metric.gauge.value;
  return sum;
}

// The size of the cache as labels of a constant 1: the gateway reads its block size off it.
MetricFamily cache_config(const MetricFamily& pages, const MetricFamily& page_tokens) {
  const auto text = [](double count) { return std::to_string(static_cast<uint64_t>(count)); };
  return gauge_family("vllm:cache_config_info", "The size of the KV cache, as labels.",
                      {{1,
                        {{"model_name", model_of(pages)},
                         {"engine", "0"},
                         {"block_size", text(total(page_tokens))},
                         {"num_gpu_blocks", text(total(pages))}}}});
}

}  // namespace

std::vector<MetricFamily> vllm_aliases(const std::vector<MetricFamily>& families) {
  std::vector<MetricFamily> aliases;
  for (const auto& [ours, theirs] : kAliases) {
    const MetricFamily* family = find_family(families, ours);
    if (family != nullptr) aliases.push_back(alias_of(*family, theirs));
  }
  const MetricFamily* pages = find_family(families, "lockstep_kv_cache_pages");
  const MetricFamily* page_tokens = find_family(families, "lockstep_kv_cache_page_tokens");
  if (pages != nullptr && page_tokens != nullptr) {
    aliases.push_back(cache_config(*pages, *page_tokens));
  }
  return aliases;
}

}  // namespace lockstep
