#include "engine/placement/device_rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "engine/base/check.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/collectives/gpu_all_reduce_choice.h"
#include "engine/collectives/gpu_mailbox.h"
#include "engine/collectives/gpu_nccl_sum.h"
#include "engine/collectives/nccl.h"
#include "engine/placement/gpu_traits.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {
namespace {

constexpr double kShareParts = 64;
// Each of several ranks of processors has so many: 64 for two of them.
constexpr double kPartsPerRank = 32;
// The part that a GPU's share may have of the memory left beside what lies there whatever the share
// is; the rest is for a longer cache. A guess.
constexpr double kGpuPartForModel = 0.8;

// Tokens of a pass if the user gives none and only GPUs compute: prompted tokens, however few, have
// the whole model unpacked, which by its bytes takes nearly as long as the products of 512 tokens.
// Not measured.
constexpr size_t kGpuBatchTokens = 2048;

// A pass of layers by rank has so many times the tokens, in chunks: of C chunks, R GPUs need the
// time of C + R - 1 for the C * R that one would compute.
constexpr size_t kChunksOfPass = 4;

// Panels of all weights are unpacked for a prompt however short it is, where a window of generated
// tokens reads them once. So short a prompt fills no page: none is shared in which some tokens were
// computed as prompted ones and some were not.
constexpr size_t kGpuShortPrompt = 32;
static_assert(kGpuShortPrompt < kPageTokens);

Result<std::vector<RankPlace>> find_node_places(const Settings& settings, const Topology& topology,
                                                const DeviceChoice& devices, size_t rank_count,
                                                const std::vector<double>& shares,
                                                std::optional<double> cpu_limit) {
  return place_ranks(topology, {.nodes = devices.nodes,
                                .rank_count = rank_count,
                                .shares = shares,
                                .worker_count = settings.worker_count,
                                .reserved_cores = settings.reserved_cores,
                                .cpu_limit = cpu_limit});
}

// Whole parts of so many, at least 1.
double in_parts(double share, double parts) {
  return std::max(1.0, std::round(share * parts));
}

// The parts of the model for which these GPUs have space.
std::vector<double> limits_of(const Topology& topology, const std::vector<int>& gpus,
                              const GpuNeeds& needs) {
  std::vector<double> limits;
  for (const int index : gpus) {
    const uint64_t usable = usable_bytes(gpu_at(topology, index));
    const auto left = static_cast<double>(usable - std::min(usable, needs.each_bytes));
    const double part = kGpuPartForModel * left / static_cast<double>(needs.shared_bytes);
    limits.push_back(needs.shared_bytes == 0 ? 1 : std::min(part, 1.0));
  }
  return limits;
}

// The shares of GPUs alone, in whole parts. None: even ones, since the GPUs are of one kind or one
// of them does not say how fast it is, and all have space for as much.
std::vector<double> shares_of_gpus(const Topology& topology, const std::vector<int>& gpus,
                                   const std::optional<GpuSpeeds>& speeds, const GpuNeeds& needs) {
  std::vector<double> bandwidths(gpus.size(), 1);
  bool alike = true;
  if (speeds) {
    std::ranges::transform(gpus, bandwidths.begin(),
                           [&](int gpu) { return speeds->bytes_per_second.at(gpu); });
    alike = std::ranges::any_of(bandwidths, [](double speed) { return speed <= 0; });
    if (alike) bandwidths.assign(gpus.size(), 1);
  }
  auto shares = shares_in_parts(shares_within(bandwidths, limits_of(topology, gpus, needs)));
  const bool even = alike && std::ranges::count(shares, shares.front()) == std::ssize(shares);
  return even ? std::vector<double>() : shares;
}

// Each GPU is one rank.
std::unexpected<Error> wrong_rank_count(const Settings& settings, const DeviceChoice& devices,
                                        std::string_view beside) {
  return invalid_input(
      "ranks is {}, but each GPU is one rank, of which {} are chosen{}; leave --ranks out, or "
      "use --devices cpu",
      settings.rank_count, devices.gpus.size(), beside);
}

std::unexpected<Error> no_gather(const DeviceChoice& devices) {
  return invalid_input(
      "strategy gather is for ranks that share memory; {} sum their parts: use --strategy auto "
      "or reduce",
      device_names(devices));
}

// Beside what computes as one there is no strategy of layers: a token would wait for theirs.
std::unexpected<Error> no_layers(const DeviceChoice& devices) {
  return invalid_input(
      "strategy layers is for GPUs alone, not for {}: use --devices gpu, or --strategy auto",
      device_names(devices));
}

PlanOptions sizes_of_passes(const Settings& settings, size_t batch_tokens) {
  PlanOptions options;
  options.batch_tokens = batch_tokens;
  options.logit_rows = settings.logit_rows;
  options.kv_format = settings.kv_format;
  options.state_slots = settings.sequence_count;  // and checkpoints, once the cache is sized
  options.bf16_sums = settings.bf16_sums;
  options.without_fusion = settings.without_fusion;
  return options;
}

void set_gpu_options(const Model& model, const Settings& settings, PlanOptions& options) {
  options.forms = gpu_product_forms();
  options.sequences = settings.sequence_count;
  const size_t context = settings.context_or(model.trained_context_tokens);
  options.sequence_pages = (context + kPageTokens - 1) / kPageTokens;
}

void set_node_options(const Settings& settings, PlanOptions& options) {
  options.forms = product_forms(settings.profile, *settings.kernels);
  options.prompt_attention =
      prompt_attention(settings.profile, *settings.kernels, settings.kv_format);
}

class NodeRules final : public DeviceRules {
 public:
  NodeRules() : DeviceRules(DeviceTraits()) {}

  Result<void> check(const Graph& /*graph*/, const Settings& settings, const Machine& /*machine*/,
                     const DeviceChoice& devices) const override {
    if (settings.strategy == Strategy::kLayers) return no_layers(devices);
    return {};
  }

  std::string arithmetic(const Settings& settings) const override {
    return std::string(profile_name(settings.profile));
  }
  std::string instruction_set(const Topology& /*topology*/, const Settings& settings,
                              const DeviceChoice& /*devices*/) const override {
    return std::string(settings.kernels->name);
  }
  std::string unheeded_text(std::string_view /*arithmetic*/) const override { return ""; }

  PlanOptions plan_options(const Model& /*model*/, const Settings& settings,
                           size_t batch_tokens) const override {
    PlanOptions options = sizes_of_passes(settings, batch_tokens);
    set_node_options(settings, options);
    return options;
  }
  // Ranks of one process share its memory: pushing whole results is cheap, and keeps the bits.
  Strategy strategy(const Settings& settings, size_t /*rank_count*/) const override {
    return settings.strategy.value_or(Strategy::kGather);
  }

  bool shares_follow_gpu_speeds(const Settings& /*settings*/, const Topology& /*topology*/,
                                const DeviceChoice& /*devices*/) const override {
    return false;
  }
  Result<std::vector<RankPlace>> places(const Settings& settings, const Machine& machine,
                                        const DeviceChoice& devices, const GpuNeeds& /*needs*/,
                                        const std::optional<GpuSpeeds>& /*speeds*/) const override {
    auto places = find_node_places(settings, machine.topology, devices, settings.rank_count,
                                   settings.shares, machine.cpu_limit);
    if (!places || !settings.measure_shares) return places;
    if (places->size() == 1 && !settings.among_hosts) return places;
    const auto bandwidths = machine.meter.read_speeds(*places);
    if (!bandwidths) return std::unexpected(bandwidths.error());
    // Those of several hosts are compared with one another: they stay bytes per second.
    const auto shares = settings.among_hosts ? *bandwidths : shares_in_parts(*bandwidths);
    for (size_t rank = 0; rank < places->size(); ++rank) (*places)[rank].share = shares[rank];
    return places;
  }

  bool generated_pages_are_shared(const PlanOptions& options) const override {
    return options.prompt_attention == AttentionForm::kF32 &&
           std::ranges::all_of(options.forms, [](const ProductForms& forms) {
             return forms.prompted == forms.generated;
           });
  }
  // Processors compute the same whichever they are.
  std::vector<std::string> fingerprint_parts(const std::string& /*instruction_set*/,
                                             const std::vector<RankPlace>& /*places*/,
                                             Strategy /*strategy*/) const override {
    return {};
  }
};

// GPUs have an arithmetic of their own, whether nodes are beside them or not.
class RulesWithGpus : public DeviceRules {
 public:
  using DeviceRules::DeviceRules;

  std::string arithmetic(const Settings& /*settings*/) const final {
    return std::string(kGpuArithmetic);
  }
  std::string unheeded_text(std::string_view arithmetic) const final {
    if (arithmetic == "auto") return "";
    return fmt::format("GPUs have arithmetic of their own: --arithmetic {} is for processors",
                       arithmetic);
  }
  // Attention to generated tokens is of its own.
  bool generated_pages_are_shared(const PlanOptions& /*options*/) const final { return false; }
  // It is not told how GPUs round within a tile product.
  std::vector<std::string> fingerprint_parts(const std::string& instruction_set,
                                             const std::vector<RankPlace>& places,
                                             Strategy strategy) const final {
    if (places.size() > 1 && strategy == Strategy::kReduce) return {instruction_set};
    // As one GPU alone.
    if (strategy == Strategy::kLayers) return {instruction_set, std::to_string(1.0)};
    return {instruction_set, std::to_string(places.front().share)};
  }
};

class GpuRules final : public RulesWithGpus {
 public:
  GpuRules()
      : RulesWithGpus({.rank_count_is_free = false,
                       .memory_can_be_kept = false,
                       .gives_kept_rows = false,
                       .drafts_among_hosts = false,
                       .sums_parts = true,
                       .joined_by_nccl = true,
                       .has_alternative = true}) {}

  size_t short_prompt() const override { return kGpuShortPrompt; }

  Result<void> check(const Graph& graph, const Settings& settings, const Machine& machine,
                     const DeviceChoice& devices) const override {
    const size_t count = devices.gpus.size();
    // First, as its remedies are other devices, of which the checks of the devices would say more.
    const bool by_layers = settings.strategy == Strategy::kLayers;
    const bool alone = (count == 1 && !settings.among_hosts) || by_layers;
    auto fits = check_gpu_graph(graph, settings.without_fusion,
                                alone ? GpuCompany::kNobody : GpuCompany::kGpus);
    if (!fits) return fits;
    if (auto cache = check_gpu_cache(settings.kv_format, settings.kv_format_name); !cache) {
      return cache;
    }
    if (settings.rank_count != 0 && settings.rank_count != count) {
      return wrong_rank_count(settings, devices, "");
    }
    if (count > kGpuRanksMax) {
      return invalid_input(
          "{} GPUs are chosen; at most {} can be ranks of one split: name fewer in --devices",
          count, kGpuRanksMax);
    }
    if (settings.strategy == Strategy::kGather && (count > 1 || settings.among_hosts)) {
      return no_gather(devices);
    }
    if (settings.among_hosts) return check_among_hosts(settings, machine);
    if (count < 2 || by_layers) return {};
    const std::string absence = absence_of_nccl(machine.gpu_platform);
    return absence.empty() ? Result<void>() : check_links(machine.topology, devices.gpus, absence);
  }
  std::string_view sums_text(const Settings& settings, const Topology& topology,
                             const DeviceChoice& devices) const override {
    if (settings.among_hosts) return "; with those of other hosts they sum by NCCL";
    if (check_links(topology, devices.gpus)) return "";
    if (settings.strategy == Strategy::kLayers) {
      return "; not all of them reach the others' memory, so layers' rows go through the host";
    }
    return "; not all of them reach the others' memory, so sums go by NCCL";
  }
  uint64_t nccl_bytes(const Machine& machine, const DeviceChoice& devices, bool gpus_linked,
                      uint64_t message_floats) const override {
    const size_t count = devices.gpus.size();
    if (count < 2 || message_floats == 0) return 0;
    if (!absence_of_nccl(machine.gpu_platform).empty()) return 0;
    const GpuSumWay way = gpu_sum_way({.rank_count = count,
                                       .bytes = message_floats * sizeof(float),
                                       .peer_access = gpus_linked,
                                       .nccl = true});
    if (way != GpuSumWay::kNccl) return 0;
    return kNcclBytes + gpu_nccl_received_floats(count, message_floats) * sizeof(float);
  }

  std::string instruction_set(const Topology& topology, const Settings& /*settings*/,
                              const DeviceChoice& devices) const override {
    return gpu_code_name(gpu_at(topology, devices.gpus.front()));
  }

  // A GPU with layers of its own computes a pass in chunks, others the ones before and behind.
  std::vector<size_t> batches(const Settings& settings) const override {
    if (settings.batch_is_given) return {settings.batch_tokens};
    // Hosts take one, whether the model would find space on each of them or not.
    if (settings.among_hosts) return {std::max(kGpuBatchTokens, settings.batch_tokens)};
    if (settings.strategy == Strategy::kLayers) {
      return {kChunksOfPass * kGpuBatchTokens, kGpuBatchTokens, settings.batch_tokens};
    }
    return {std::max(kGpuBatchTokens, settings.batch_tokens), settings.batch_tokens};
  }
  PlanOptions plan_options(const Model& model, const Settings& settings,
                           size_t batch_tokens) const override {
    PlanOptions options = sizes_of_passes(settings, batch_tokens);
    set_gpu_options(model, settings, options);
    // A chunk's tokens see none of the next one's keys.
    const bool by_chunks = settings.strategy == Strategy::kLayers && !model.graph.sees_ahead();
    if (by_chunks) options.chunk_tokens = kGpuBatchTokens;
    return options;
  }
  // They sum their parts: pushing whole results would need four barriers of all of them a layer.
  // One alone has nothing to sum.
  Strategy strategy(const Settings& settings, size_t rank_count) const override {
    if (settings.strategy == Strategy::kLayers) return Strategy::kLayers;
    return rank_count > 1 ? Strategy::kReduce : Strategy::kGather;
  }

  bool shares_follow_gpu_speeds(const Settings& settings, const Topology& topology,
                                const DeviceChoice& devices) const override {
    return settings.shares.empty() && !are_alike(topology, devices.gpus);
  }
  Result<std::vector<RankPlace>> places(const Settings& settings, const Machine& machine,
                                        const DeviceChoice& devices, const GpuNeeds& needs,
                                        const std::optional<GpuSpeeds>& speeds) const override {
    const Topology& topology = machine.topology;
    // GPUs that somebody has named are refused where one is too small, with what would fit. Of
    // whole layers it is their choice that looks at the memory (place_layers()).
    const bool by_layers = settings.strategy == Strategy::kLayers;
    GpuNeeds limiting = devices.automatic && !by_layers ? needs : GpuNeeds();
    if (devices.gpus.size() > 1 && !by_layers) {
      limiting.each_bytes += gpu_mailbox_bytes(devices.gpus.size(), GpuPeers().channel_count);
    }
    return place_gpu_ranks(topology, devices.gpus,
                           settings.shares.empty()
                               ? shares_of_gpus(topology, devices.gpus, speeds, limiting)
                               : settings.shares);
  }

 private:
  static Result<void> check_among_hosts(const Settings& settings, const Machine& machine) {
    if (settings.strategy == Strategy::kLayers) {
      return invalid_input(
          "strategy layers is for the GPUs of one host: with --hosts use --strategy auto");
    }
    const std::string absence = absence_among_hosts(machine.gpu_platform);
    if (absence.empty()) return {};
    return invalid_input(
        "GPUs of several hosts are joined by NCCL, and cannot be {}; --devices cpu has processors "
        "compute",
        absence);
  }
};

class MixedRules final : public RulesWithGpus {
 public:
  MixedRules()
      : RulesWithGpus({.experts_by_kind = true,
                       .rank_count_is_free = false,
                       .memory_can_be_kept = false,
                       .gives_kept_rows = false,
                       .drafts_among_hosts = false,
                       .sums_parts = true,
                       .spans_hosts = false,
                       .has_alternative = true}) {}

  Result<void> check(const Graph& graph, const Settings& settings, const Machine& /*machine*/,
                     const DeviceChoice& devices) const override {
    auto fits = check_gpu_graph(graph, settings.without_fusion, GpuCompany::kNodes);
    if (!fits) return fits;
    if (auto cache = check_gpu_cache(settings.kv_format, settings.kv_format_name); !cache) {
      return cache;
    }
    if (settings.rank_count != 0 && settings.rank_count <= devices.gpus.size()) {
      return wrong_rank_count(settings, devices, ", and nodes are to have some");
    }
    if (settings.strategy == Strategy::kGather) return no_gather(devices);
    if (settings.strategy == Strategy::kLayers) return no_layers(devices);
    return {};
  }

  std::string instruction_set(const Topology& topology, const Settings& settings,
                              const DeviceChoice& devices) const override {
    return fmt::format("{}+{}", gpu_code_name(gpu_at(topology, devices.gpus.front())),
                       settings.kernels->name);
  }

  PlanOptions plan_options(const Model& model, const Settings& settings,
                           size_t batch_tokens) const override {
    PlanOptions options = sizes_of_passes(settings, batch_tokens);
    set_gpu_options(model, settings, options);
    set_node_options(settings, options);
    return options;
  }
  Strategy strategy(const Settings& /*settings*/, size_t /*rank_count*/) const override {
    return Strategy::kReduce;
  }

  bool shares_follow_gpu_speeds(const Settings& settings, const Topology& /*topology*/,
                                const DeviceChoice& /*devices*/) const override {
    return settings.shares.empty();
  }
  // GPUs first. The nodes' ranks have what cores and what time the threads that drive GPUs leave.
  Result<std::vector<RankPlace>> places(const Settings& settings, const Machine& machine,
                                        const DeviceChoice& devices, const GpuNeeds& needs,
                                        const std::optional<GpuSpeeds>& speeds) const override {
    const Topology& topology = machine.topology;
    auto places = place_gpu_ranks(topology, devices.gpus, {});
    if (!places) return places;
    const size_t gpu_count = places->size();
    std::vector<int> drivers;
    for (const RankPlace& place : *places) drivers.push_back(place.cpus.front());
    const size_t rank_count = settings.rank_count - std::min(settings.rank_count, gpu_count);
    auto cpu_limit = machine.cpu_limit;
    if (cpu_limit) *cpu_limit = std::max(1.0, *cpu_limit - static_cast<double>(drivers.size()));
    auto nodes = find_node_places(settings, without_cores(topology, drivers), devices, rank_count,
                                  {}, cpu_limit);
    if (!nodes) return nodes;
    places->insert(places->end(), nodes->begin(), nodes->end());
    if (settings.shares.empty()) {
      const std::span<RankPlace> all(*places);
      auto shared = share_by_bandwidth(machine, devices, *speeds, needs, all.first(gpu_count),
                                       all.subspan(gpu_count));
      if (!shared) return std::unexpected(shared.error());
    }
    if (auto set = set_shares(settings.shares, *places); !set) return std::unexpected(set.error());
    return places;
  }
};

}  // namespace

const DeviceRules& rules_of(const DeviceChoice& devices) {
  static const NodeRules nodes;
  static const GpuRules gpus;
  static const MixedRules both;
  if (devices.gpus.empty()) return nodes;
  if (devices.nodes.empty()) return gpus;
  return both;
}

Result<std::vector<RankPlace>> find_places(const Settings& settings, const Machine& machine,
                                           const DeviceChoice& devices, const GpuNeeds& needs,
                                           const std::optional<GpuSpeeds>& speeds) {
  const DeviceRules& rules = rules_of(devices);
  CHECK(speeds.has_value() || !rules.shares_follow_gpu_speeds(settings, machine.topology, devices),
        "how fast {} are is not known", device_names(devices));
  return rules.places(settings, machine, devices, needs, speeds);
}

Shares shares_of(const std::vector<RankPlace>& places) {
  Shares shares;
  for (const RankPlace& place : places) {
    shares.dense.push_back(place.share);
    shares.experts.push_back(expert_share_of(place));
  }
  return shares;
}

Result<void> share_by_bandwidth(const Machine& machine, const DeviceChoice& devices,
                                const GpuSpeeds& speeds, const GpuNeeds& needs,
                                std::span<RankPlace> gpus, std::span<RankPlace> nodes) {
  std::vector<double> bandwidths;
  for (const int index : devices.gpus) {
    bandwidths.push_back(speeds.bytes_per_second.at(index));
    if (bandwidths.back() > 0) continue;
    return invalid_input(
        "gpu{} does not say how fast its memory is: give the ranks' shares, like --shares {}",
        index, fmt::join(std::vector<int>(gpus.size() + nodes.size(), 1), ":"));
  }
  const auto measured = machine.meter.read_speeds(nodes);
  if (!measured) return std::unexpected(measured.error());
  const double node_bandwidth = std::accumulate(measured->begin(), measured->end(), 0.0);
  bandwidths.push_back(node_bandwidth);
  auto limits = limits_of(machine.topology, devices.gpus, needs);
  limits.push_back(1);
  const std::vector<double> shares = shares_within(bandwidths, limits);
  double taken = 0;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    gpus[rank].share = in_parts(shares[rank], kShareParts);
    taken += gpus[rank].share;
  }
  const double left = std::max(static_cast<double>(nodes.size()), kShareParts - taken);
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    nodes[rank].share =
        in_parts(left / kShareParts * (*measured)[rank] / node_bandwidth, kShareParts);
  }
  return {};
}

std::vector<double> shares_in_parts(const std::vector<double>& bandwidths) {
  const double all = std::accumulate(bandwidths.begin(), bandwidths.end(), 0.0);
  const double parts = kPartsPerRank * static_cast<double>(bandwidths.size());
  std::vector<double> shares;
  for (const double own : bandwidths) {
    shares.push_back(in_parts(own / all, parts));
  }
  return shares;
}

std::vector<double> shares_within(const std::vector<double>& bandwidths,
                                  const std::vector<double>& limits) {
  std::vector<double> shares(bandwidths.size(), 0);
  std::vector<bool> limited(bandwidths.size(), false);
  double left = 1;
  for (bool found = true; found;) {
    double open = 0;
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      if (!limited[rank]) open += bandwidths[rank];
    }
    if (open == 0) break;
    const double all_left = left;
    found = false;
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      if (limited[rank]) continue;
      shares[rank] = all_left * bandwidths[rank] / open;
      if (shares[rank] <= limits[rank]) continue;
      shares[rank] = limits[rank];
      left -= limits[rank];
      limited[rank] = found = true;
    }
  }
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (all == 0) return std::vector<double>(shares.size(), 1.0 / static_cast<double>(shares.size()));
  for (double& share : shares) share /= all;
  return shares;
}

}  // namespace lockstep
