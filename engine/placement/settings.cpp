#include "engine/placement/settings.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

// Rows of logits of one pass: enough for every sequence, and for prompts whose
// logits are all wanted to advance at a fair rate; a row is a whole vocabulary
// wide.
constexpr size_t kLeastLogitRows = 32;

// Tokens of a pass where nothing was asked for.
constexpr size_t kBatchTokens = 512;
// Likewise at most, where a pass computes whole texts.
constexpr size_t kWholeTextTokens = 8192;

std::unexpected<Error> not_known(std::string_view what, const std::string& name,
                                 std::string_view known) {
  return invalid_input("{} \"{}\" is not known; known are {}", what, name, known);
}

const std::string& key_format(const EngineOptions& options) {
  return options.kv_key_format.empty() ? options.kv_format : options.kv_key_format;
}
const std::string& value_format(const EngineOptions& options) {
  return options.kv_value_format.empty() ? options.kv_format : options.kv_value_format;
}

Result<KvFormat> parse_kv_format(const std::string& name) {
  if (name == "f32") return KvFormat::kF32;
  if (name == "f16") return KvFormat::kF16;
  if (name == "bf16") return KvFormat::kBf16;
  if (name == "q8_0") return KvFormat::kQ8_0;
  if (name == "q4_0") return KvFormat::kQ4_0;
  if (name == "q4_h") return KvFormat::kQ4H;
  return not_known("KV format", name, "f16, bf16, f32, q8_0, q4_h and q4_0");
}

Result<std::optional<Strategy>> parse_strategy(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "gather") return Strategy::kGather;
  if (name == "reduce") return Strategy::kReduce;
  if (name == "layers") return Strategy::kLayers;
  return not_known("strategy", name, "auto, gather, reduce and layers");
}

Result<void> parse_formats(const EngineOptions& options, Settings& settings) {
  const auto keys = parse_kv_format(key_format(options));
  if (!keys) return std::unexpected(keys.error());
  const auto values = parse_kv_format(value_format(options));
  if (!values) return std::unexpected(values.error());
  settings.kv_format = {*keys, *values};
  settings.kv_format_name = kv_format_name(options);
  if (options.exchange_format != "f32" && options.exchange_format != "bf16") {
    return not_known("exchange format", options.exchange_format, "f32 and bf16");
  }
  settings.bf16_sums = options.exchange_format == "bf16";
  const auto without = parse_fusions(options.without_fusion);
  if (!without) return std::unexpected(without.error());
  settings.without_fusion = *without;
  return {};
}

Result<void> parse_sizes(const EngineOptions& options, Settings& settings) {
  settings.sequence_count = options.sequence_count;
  const auto drafters = choose_drafters(options.speculate, !options.draft_model.empty());
  if (!drafters) return std::unexpected(drafters.error());
  settings.drafters = *drafters;
  if (options.draft_tokens > kDraftTokensMost) {
    return invalid_input("draft_tokens is {}; it must be at most {}", *options.draft_tokens,
                         kDraftTokensMost);
  }
  settings.drafts = options.speculate != "none" && options.draft_tokens != 0U;
  settings.batch_is_given = options.batch_tokens != 0;
  settings.batch_tokens = settings.batch_is_given
                              ? options.batch_tokens
                              : std::max<size_t>(kBatchTokens, options.sequence_count);
  if (settings.sequence_count == 0 || settings.sequence_count > settings.batch_tokens) {
    return invalid_input("sequences is {}; it must be from 1 to the {} tokens of a batch",
                         settings.sequence_count, settings.batch_tokens);
  }
  const size_t rows = options.logit_rows == 0
                          ? kLeastLogitRows
                          : std::min<size_t>(options.logit_rows, settings.batch_tokens);
  settings.logit_rows = std::max(rows, settings.sequence_count);
  settings.context_tokens = options.context_tokens;
  settings.kv_pages = options.kv_pages;
  return {};
}

}  // namespace

std::string kv_format_name(const EngineOptions& options) {
  const std::string& keys = key_format(options);
  const std::string& values = value_format(options);
  return keys == values ? keys : fmt::format("{}/{}", keys, values);
}

Result<Settings> parse(const EngineOptions& options, const KernelTable& kernels,
                       const Machine& machine) {
  Settings settings;
  settings.kernels = &kernels;
  if (auto parsed = parse_formats(options, settings); !parsed) {
    return std::unexpected(parsed.error());
  }
  if (auto parsed = parse_sizes(options, settings); !parsed) {
    return std::unexpected(parsed.error());
  }
  const bool on_cpu = options.devices == "auto" && options.hosts.is_group();
  if (options.devices != "auto" || on_cpu) {
    auto devices = choose_devices(on_cpu ? "cpu" : options.devices, machine.topology, 0);
    if (!devices) return std::unexpected(devices.error());
    settings.devices = std::move(*devices);
  }
  const auto profile = choose_profile(options.arithmetic, kernels);
  if (!profile) return std::unexpected(profile.error());
  settings.profile = *profile;
  const auto strategy = parse_strategy(options.strategy);
  if (!strategy) return std::unexpected(strategy.error());
  settings.strategy = *strategy;
  if (settings.strategy == Strategy::kLayers && settings.bf16_sums) {
    return invalid_input(
        "exchange format bf16 is for sums, of which strategy layers has none: use "
        "--exchange-format f32 or --strategy reduce");
  }
  settings.among_hosts = options.hosts.is_group();
  settings.rank_count = options.rank_count;
  settings.worker_count = options.worker_count;
  settings.shares = options.shares;
  settings.measure_shares = options.measure_shares;
  settings.gpu_expert_layers = options.gpu_expert_layers;
  settings.reserved_cores = options.reserved_cores;
  settings.gpus = {.launch_overlap = options.gpu_launch_overlap,
                   .pass_ahead = options.gpu_pass_ahead,
                   .nccl_peer_access = options.nccl_peer_access,
                   .pass_deadline = std::chrono::seconds(options.gpu_deadline_seconds)};
  return settings;
}

Result<Settings> fit_to_model(const Model& model, Settings settings) {
  const size_t trained = model.trained_context_tokens;
  if (!model.has_longer_contexts && settings.context_tokens > trained) {
    return invalid_input(
        "context is {}, but the model has positions for {} tokens: use --context {}",
        settings.context_tokens, trained, trained);
  }
  if (!model.graph.sees_ahead()) return settings;
  const size_t context = settings.context_or(trained);
  if (!settings.batch_is_given) {
    settings.batch_tokens = std::max(settings.batch_tokens, std::min(context, kWholeTextTokens));
    settings.batch_is_given = true;
  }
  if (settings.context_tokens > settings.batch_tokens) {
    return invalid_input(
        "context is {}, but this model computes a whole text in one pass, which has {} tokens: use "
        "--batch-tokens {}",
        settings.context_tokens, settings.batch_tokens, settings.context_tokens);
  }
  settings.context_tokens = std::min(context, settings.batch_tokens);
  settings.logit_rows = settings.batch_tokens;
  return settings;
}

Settings with_one_rank(Settings settings) {
  settings.rank_count = 1;
  settings.worker_count = 0;
  settings.shares.clear();
  settings.measure_shares = false;
  return settings;
}

EngineOptions with_ranks_of(const Settings& settings, EngineOptions options) {
  options.rank_count = static_cast<uint32_t>(settings.rank_count);
  options.worker_count = static_cast<uint32_t>(settings.worker_count);
  options.shares = settings.shares;
  options.measure_shares = settings.measure_shares;
  return options;
}

}  // namespace lockstep
