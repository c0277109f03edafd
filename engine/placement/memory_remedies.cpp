#include "engine/placement/memory_remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/attention.h"
#include "engine/machine/device_choice.h"
#include "engine/placement/device_rules.h"
#include "engine/placement/host_agreement.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/placer.h"
#include "engine/placement/settings.h"

namespace lockstep {
namespace {

// Smaller batches save little and make prompts slow.
constexpr size_t kLeastBatchTokens = 32;

// Options that were changed, and the settings that change them: "--devices cpu with --shares even".
struct Remedy {
  EngineOptions options;
  std::vector<std::string> settings = {};

  std::string text() const { return fmt::format("{}", fmt::join(settings, " with ")); }
};

void set_devices(const std::string& devices, Remedy& remedy) {
  remedy.options.devices = devices;
  remedy.settings.push_back("--devices " + devices);
}

void set_ranks(uint32_t ranks, Remedy& remedy) {
  remedy.options.rank_count = ranks;
  remedy.settings.push_back(ranks == 0 ? "--ranks auto" : fmt::format("--ranks {}", ranks));
}

void set_even_shares(Remedy& remedy) {
  if (remedy.options.shares.empty() && !remedy.options.measure_shares) return;
  remedy.options.shares.clear();
  remedy.options.measure_shares = false;
  remedy.settings.emplace_back("--shares even");
}

void set_shares_to(const std::vector<double>& shares, Remedy& remedy) {
  remedy.options.shares = shares;
  remedy.options.measure_shares = false;
  remedy.settings.push_back(fmt::format("--shares {}", fmt::join(shares, ":")));
}

void set_context(size_t tokens, Remedy& remedy) {
  remedy.options.context_tokens = static_cast<uint32_t>(tokens);
  remedy.settings.push_back(fmt::format("--context {}", tokens));
}

void set_sequences(size_t count, Remedy& remedy) {
  remedy.options.sequence_count = static_cast<uint32_t>(count);
  remedy.settings.push_back(fmt::format("--sequences {}", count));
}

void set_kv_pages(size_t pages, Remedy& remedy) {
  remedy.options.kv_pages = static_cast<uint32_t>(pages);
  remedy.settings.push_back(fmt::format("--kv-pages {}", pages));
}

void set_kv_format(const std::string& format, Remedy& remedy) {
  remedy.options.kv_format = format;
  remedy.settings.push_back("--kv-format " + format);
}

void set_drafter(const std::string& drafter, Remedy& remedy) {
  remedy.options.speculate = drafter;
  remedy.settings.push_back("--speculate " + drafter);
}

void set_batch_tokens(size_t tokens, Remedy& remedy) {
  remedy.options.batch_tokens = static_cast<uint32_t>(tokens);
  remedy.settings.push_back(fmt::format("--batch-tokens {}", tokens));
}

// The machine with nothing else on it.
Topology emptied(Topology topology) {
  for (Node& node : topology.nodes) {
    uint64_t pools = 0;
    for (const HugePagePool& pool : node.pools) pools += pool.total_pages * pool.page_bytes;
    node.free_bytes =
        std::max(node.free_bytes, node.memory_bytes - std::min(node.memory_bytes, pools));
  }
  for (Gpu& gpu : topology.gpus) gpu.free_bytes = gpu.memory_bytes;
  return topology;
}

// Scales shares to whole numbers above 0 without a common divisor.
std::vector<double> in_small_numbers(const std::vector<double>& shares) {
  constexpr double kParts = 32;
  const double most = *std::ranges::max_element(shares);
  std::vector<int> parts;
  int divisor = 0;
  for (const double share : shares) {
    parts.push_back(static_cast<int>(std::max(1.0, std::floor(kParts * share / most))));
    divisor = std::gcd(divisor, parts.back());
  }
  std::vector<double> small;
  for (const int part : parts) {
    const int whole = part / divisor;
    small.push_back(whole);
  }
  return small;
}

class Search {
 public:
  Search(const Model& model, const EngineOptions& options, const KernelTable& kernels,
         const Machine& machine, const ModelLayout& layout)
      : model_(model),
        options_(options),
        kernels_(kernels),
        machine_(machine),
        layout_(layout),
        page_count_(model.graph, layout.plan_options.batch_tokens) {}

  // Each of them alone is enough.
  std::vector<Remedy> all() const {
    std::vector<Remedy> found;
    const Remedy nothing{.options = options_};
    const auto add = [&](std::optional<Remedy> remedy) {
      if (remedy) found.push_back(std::move(*remedy));
    };
    add(smaller_context(nothing));
    add(fewer_sequences(nothing));
    add(fewer_kv_pages(nothing));
    add(smaller_kv_format(nothing));
    add(smaller_batch(nothing));
    add(no_other_model());
    add(other_ranks());
    add(other_shares(nothing, layout_));
    for (const char* const devices : {"cpu", "gpu", "all"}) add(other_devices(devices, nothing));
    if (found.empty()) add(several());
    return found;
  }

  bool fits_when_all_memory_is_free() const {
    Machine machine = machine_;
    machine.topology = emptied(machine_.topology);
    for (size_t node = 0; node < machine.topology.nodes.size(); ++node) {
      machine.memory.available_bytes +=
          machine.topology.nodes[node].free_bytes - machine_.topology.nodes[node].free_bytes;
    }
    ModelLayout layout = layout_;
    const auto settings = settings_of(options_, machine);
    return settings && fits_memory(model_, *settings, machine, layout);
  }

 private:
  // The settings that options come to for this model.
  Result<Settings> settings_of(const EngineOptions& options, const Machine& machine) const {
    auto parsed = parse(options, kernels_, machine);
    if (!parsed) return parsed;
    if (layout_.draft && !parsed->drafters.stage.empty()) {
      parsed->draft_model = layout_.draft->model;
    }
    return fit_to_model(model_, std::move(*parsed));
  }

  // Takes the shares that were measured for this layout: a trial measures nothing.
  EngineOptions as_measured(EngineOptions options) const {
    const bool measured = layout_.gpu_speeds.has_value() || options.measure_shares;
    if (!measured || !options.shares.empty()) return options;
    options.measure_shares = false;
    for (const RankPlace& place : layout_.places) {
      options.shares.push_back(place.share > 0 ? place.share : place.expert_share.value_or(1));
    }
    const bool by_kind = layout_.rules().traits.experts_by_kind;
    if (!options.gpu_expert_layers && by_kind && model_.graph.chosen_experts() > 0) {
      options.gpu_expert_layers = static_cast<uint32_t>(layout_.gpu_expert_layers);
    }
    return options;
  }

  // The layout by these settings; among several hosts, whose ranks stay as they are.
  Result<ModelLayout> place(const Settings& settings) const {
    auto layout = Placer(model_, settings, machine_).place();
    if (!layout || !layout_.hosts) return layout;
    layout->hosts = layout_.hosts;
    layout->places_of_hosts = layout_.places_of_hosts;
    if (auto split = split_among_hosts(model_, *layout); !split) {
      return std::unexpected(split.error());
    }
    return layout;
  }

  bool works(const EngineOptions& options) const {
    const auto settings = settings_of(options, machine_);
    if (!settings) return false;
    auto layout = place(*settings);
    return layout && fits_memory(model_, *settings, machine_, *layout);
  }

  // The split stays as it is, and with it weights that were held.
  bool works_in_place(const EngineOptions& changed) const {
    EngineOptions options = as_measured(changed);
    // GPUs would be chosen where all fits on them alone; until then they are not asked.
    const bool would_choose = layout_.rules().gives_way(layout_.devices);
    if (options.devices == "auto" && !would_choose) options.devices = "cpu";
    const auto settings = settings_of(options, machine_);
    if (!settings) return false;
    auto layout = place(*settings);
    if (!layout) return false;
    const bool same_devices = changed.devices == options_.devices;
    if (same_devices) layout->weights_held = layout_.weights_held;
    return fits_memory(model_, *settings, machine_, *layout);
  }

  // The largest number from `least` to below `end` with which it works; none where `least` is too
  // large already.
  std::optional<Remedy> largest(const Remedy& from, size_t least, size_t end, size_t unit,
                                const std::function<void(size_t, Remedy&)>& set) const {
    const auto with = [&](size_t count) {
      Remedy remedy = from;
      set(count * unit, remedy);
      return remedy;
    };
    if (least >= end || !works_in_place(with(least).options)) return std::nullopt;
    size_t too_large = end;
    while (least + 1 < too_large) {
      const size_t tried = least + (too_large - least) / 2;
      (works_in_place(with(tried).options) ? least : too_large) = tried;
    }
    return with(least);
  }

  std::optional<Remedy> smaller_context(const Remedy& from) const {
    if (options_.context_tokens == 0 || options_.fixed_lengths) return std::nullopt;
    // A longer one than the model was trained for is warned of at each trial.
    const size_t now = options_.context_tokens;
    const size_t end = std::min(pages_for(now), pages_for(model_.trained_context_tokens) + 1);
    return largest(from, 1, end, kPageTokens, set_context);
  }

  std::optional<Remedy> fewer_sequences(const Remedy& from) const {
    if (options_.fixed_lengths) return std::nullopt;
    return largest(from, 1, options_.sequence_count, 1, set_sequences);
  }

  std::optional<Remedy> fewer_kv_pages(const Remedy& from) const {
    if (options_.kv_pages == 0) return std::nullopt;
    const size_t least = page_count_.of_sequence(std::max(1U, from.options.context_tokens));
    return largest(from, least, options_.kv_pages, 1, set_kv_pages);
  }

  std::optional<Remedy> smaller_context_and_pages(const Remedy& from) const {
    if (options_.context_tokens == 0 || options_.kv_pages == 0 || options_.fixed_lengths) {
      return std::nullopt;
    }
    const size_t now = std::min<size_t>(options_.context_tokens, model_.trained_context_tokens);
    // The cache gets what one sequence takes, so that neither asks for more than the other.
    const auto set_both = [this](size_t tokens, Remedy& remedy) {
      set_context(tokens, remedy);
      set_kv_pages(page_count_.of_sequence(tokens), remedy);
    };
    return largest(from, 1, pages_for(now), kPageTokens, set_both);
  }

  std::optional<Remedy> smaller_kv_format(const Remedy& from) const {
    if (!may_take_another_format()) return std::nullopt;
    std::vector<std::string> formats = {"f16", "q8_0"};
    if (options_.kv_format != "f32") formats.erase(formats.begin());
    for (const std::string& format : formats) {
      Remedy remedy = from;
      set_kv_format(format, remedy);
      if (works_in_place(remedy.options)) return remedy;
    }
    return std::nullopt;
  }

  std::optional<Remedy> smaller_batch(const Remedy& from) const {
    const size_t least = std::max<size_t>(kLeastBatchTokens, from.options.sequence_count);
    for (size_t tokens = layout_.plan_options.batch_tokens / 2; tokens >= least; tokens /= 2) {
      Remedy remedy = from;
      set_batch_tokens(tokens, remedy);
      if (works_in_place(remedy.options)) return remedy;
    }
    return std::nullopt;
  }

  // Drafts without the model that drafts.
  std::optional<Remedy> no_other_model() const {
    if (!layout_.draft) return std::nullopt;
    Remedy remedy{.options = options_};
    set_drafter("ngram", remedy);
    return works_in_place(remedy.options) ? std::optional(remedy) : std::nullopt;
  }

  // One per node, or one in all.
  std::optional<Remedy> other_ranks() const {
    if (layout_.hosts || !layout_.rules().traits.rank_count_is_free) return std::nullopt;
    for (const size_t count : {layout_.devices.nodes.size(), size_t{1}}) {
      if (count == layout_.places.size()) continue;
      Remedy remedy{.options = options_};
      set_ranks(static_cast<uint32_t>(count), remedy);
      set_even_shares(remedy);
      if (works(remedy.options)) return remedy;
    }
    return std::nullopt;
  }

  // As the ranks have space, or even. `layout`: one with the ranks that are to have them.
  std::optional<Remedy> other_shares(const Remedy& from, const ModelLayout& layout) const {
    if (layout_.hosts || layout.places.size() < 2) return std::nullopt;
    const std::vector<double> even(layout.places.size(), 1.0);
    for (const auto& shares : {in_small_numbers(budgets_of(layout)), even}) {
      Remedy remedy = from;
      set_shares_to(shares, remedy);
      if (shares != options_.shares && works(remedy.options)) return remedy;
    }
    return std::nullopt;
  }

  // The bytes that each rank has left of its memory beside its activations, of which all ranks
  // there have as much.
  std::vector<double> budgets_of(const ModelLayout& layout) const {
    std::vector<double> budgets;
    for (size_t rank = 0; rank < layout.places.size(); ++rank) {
      const RankPlace& place = layout.places[rank];
      const RankSizes& sizes = layout.sizes[rank];
      const RankDevice& device = device_of(place);
      const std::string memory = device.memory_name(place);
      const auto beside =
          static_cast<size_t>(std::ranges::count_if(layout.places, [&](const RankPlace& other) {
            return device_of(other).memory_name(other) == memory;
          }));
      const uint64_t taken = sizes.own_bytes() - sizes.weight_bytes - sizes.kv_bytes;
      const uint64_t all = device.takeable_bytes(machine_, place) / beside;
      budgets.push_back(static_cast<double>(all - std::min(all, taken) + 1));
    }
    return budgets;
  }

  // Those ranks anew: what was said of the others does not hold for them.
  std::optional<Remedy> other_devices(const std::string& devices, const Remedy& from) const {
    const auto chosen = choose_devices(devices, machine_.topology, 0);
    if (layout_.hosts || !chosen || devices == options_.devices) return std::nullopt;
    if (chosen->gpus == layout_.devices.gpus && chosen->nodes == layout_.devices.nodes) {
      return std::nullopt;
    }
    Remedy remedy = from;
    set_devices(devices, remedy);
    if (options_.rank_count != 0) set_ranks(0, remedy);
    const DeviceRules& rules = rules_of(*chosen);
    if (rules.traits.sums_parts && options_.strategy == "gather") {
      remedy.options.strategy = "auto";
      remedy.settings.emplace_back("--strategy auto");
    }
    if (options_.gpu_expert_layers) {
      remedy.options.gpu_expert_layers.reset();
      remedy.settings.emplace_back("--gpu-expert-layers auto");
    }
    Remedy plain = remedy;
    set_even_shares(plain);
    const auto settings = settings_of(plain.options, machine_);
    if (!settings) return std::nullopt;
    if (!rules.shares_follow_gpu_speeds(*settings, machine_.topology, *chosen)) {
      return works(plain.options) ? std::optional(plain) : std::nullopt;
    }
    remedy.options.shares.assign(chosen->gpus.size() + chosen->nodes.size(), 1.0);
    const auto even = settings_of(remedy.options, machine_);
    if (!even) return std::nullopt;
    const auto layout = Placer(model_, *even, machine_).place();
    return layout ? other_shares(remedy, *layout) : std::nullopt;
  }

  // For where no setting is enough by itself: less of all that may be less, first on these devices,
  // then on others; and of that no more than is of use.
  std::optional<Remedy> several() const {
    std::vector<std::function<void(Remedy&)>> savings;
    if (!options_.fixed_lengths && options_.sequence_count > 1) {
      savings.emplace_back([](Remedy& remedy) { set_sequences(1, remedy); });
    }
    if (layout_.plan_options.batch_tokens > kLeastBatchTokens && !options_.fixed_lengths) {
      savings.emplace_back([](Remedy& remedy) { set_batch_tokens(kLeastBatchTokens, remedy); });
    }
    if (may_take_another_format() && may_be_q8_0()) {
      savings.emplace_back([](Remedy& remedy) { set_kv_format("q8_0", remedy); });
    }
    auto found = least_with(savings);
    for (size_t index = 0; found && index < savings.size();) {
      auto fewer = savings;
      fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(index));
      auto without = least_with(fewer);
      if (!without) {
        ++index;
        continue;
      }
      savings = std::move(fewer);
      found = std::move(without);
    }
    return found;
  }

  // Not where formats of keys or values were chosen by themselves, nor to one of 4 bits: what that
  // costs in accuracy is for the user to weigh.
  bool may_take_another_format() const {
    const std::string& format = options_.kv_format;
    return !layout_.kv_pages_held && options_.kv_key_format.empty() &&
           options_.kv_value_format.empty() &&
           (format == "f32" || format == "f16" || format == "bf16");
  }

  bool may_be_q8_0() const {
    return std::ranges::all_of(model_.graph.nodes(), [](const GraphNode& node) {
      return node.operation != Operation::kAttention ||
             (kv_format_fits(KvFormat::kQ8_0, node.head_dimension) &&
              kv_format_fits(KvFormat::kQ8_0, node.value_dimension));
    });
  }

  // All of these savings, with another change if that is needed.
  std::optional<Remedy> least_with(const std::vector<std::function<void(Remedy&)>>& savings) const {
    Remedy thrifty{.options = options_};
    for (const auto& save : savings) save(thrifty);
    if (works_in_place(thrifty.options)) return thrifty;
    if (auto shorter = smaller_context(thrifty)) return shorter;
    if (auto fewer = fewer_kv_pages(thrifty)) return fewer;
    if (auto both = smaller_context_and_pages(thrifty)) return both;
    if (auto shared = other_shares(thrifty, layout_)) return shared;
    for (const char* const devices : {"cpu", "gpu", "all"}) {
      if (auto other = other_devices(devices, thrifty)) return other;
    }
    return std::nullopt;
  }

  const Model& model_;
  const EngineOptions& options_;
  const KernelTable& kernels_;
  const Machine& machine_;
  const ModelLayout& layout_;
  const KvPageCount page_count_;
};

}  // namespace

Error with_memory_remedies(Error refusal, const Model& model, const EngineOptions& options,
                           const KernelTable& kernels, const Machine& machine,
                           const ModelLayout& layout) {
  // An option that contradicts another one is not a want of memory.
  if (refusal.kind != ErrorKind::kMachineRefused) return refusal;
  const Search search(model, options, kernels, machine, layout);
  std::vector<std::string> ways;
  for (const Remedy& remedy : search.all()) ways.push_back(remedy.text());
  ways.emplace_back("a smaller model");
  if (layout.hosts) ways.emplace_back("more hosts");
  const std::string last = std::move(ways.back());
  ways.pop_back();
  refusal.message += fmt::format(". Use {}{}{}{}", layout.hosts ? "on all hosts " : "",
                                 fmt::join(ways, ", "), ways.empty() ? "" : " or ", last);
  if (search.fits_when_all_memory_is_free()) {
    refusal.message += ", or free memory";
    if (layout.hosts) refusal.message += " on " + layout.host_name;
  }
  return refusal;
}

}  // namespace lockstep
