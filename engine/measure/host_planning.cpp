#include "engine/measure/host_planning.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/hosts/host_group.h"
#include "engine/measure/planned_model.h"
#include "engine/placement/host_agreement.h"
#include "engine/placement/layout_speed.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/model_info.h"
#include "engine/placement/rank_choice.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr size_t kExchanges = 200;
constexpr size_t kLargeExchanges = 10;
constexpr size_t kLargeBytes = size_t{1} << 20U;

// The median time of exchanges with all other hosts, of so many bytes in each direction. All hosts
// call it at the same time.
Result<double> measure_links(HostGroup& group, size_t bytes, size_t count) {
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> in(bytes);
  std::vector<double> seconds;
  for (size_t round = 0; round < count; ++round) {
    const auto start = Clock::now();
    for (size_t host = 0; host < group.count(); ++host) {
      if (host == group.index()) continue;
      auto exchanged = group.link(host).exchange(out, in);
      if (!exchanged) return std::unexpected(exchanged.error());
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(count / 2));
  return seconds[count / 2];
}

// The bytes that each host sends to another for one generated token, over all barriers.
std::vector<size_t> bytes_of_a_token(std::span<const Plan> plans, const HostRanks& ranks) {
  Batch batch;
  batch.tokens.resize(1);
  batch.generated_tokens = 1;
  batch.logit_tokens = {0};
  std::vector<size_t> bytes;
  for (const Range& of_host : ranks.of_host) {
    size_t& sum = bytes.emplace_back(0);
    for (size_t rank = of_host.begin; rank < of_host.end; ++rank) {
      for (const Step& step : plans[rank].steps) {
        for (const ExchangedRows& rows : exchanged_rows(step)) {
          sum += exchanged_bytes(rows, batch);
        }
      }
    }
  }
  return bytes;
}

// One host's part: what it says of itself is all that the others know.
class HostPlanner {
 public:
  HostPlanner(const Model& model, const Machine& machine, HostGroup& group)
      : model_(model), machine_(machine), group_(group) {}

  // `alone`: this host's layout before it joined.
  Result<HostsPlan> plan(const ModelLayout& layout, const Settings& settings, ModelLayout alone) {
    const std::vector<Plan> plans = plans_of_hosts(model_, layout);
    HostsPlan plan;
    plan.context_tokens = static_cast<uint32_t>(layout.context_tokens);
    plan.kv_pages = layout.plan_options.kv_pages;
    const auto meets = [](const Step& step) { return step.meet == Meet::kAllRanks; };
    plan.exchanges_per_token =
        static_cast<uint32_t>(std::ranges::count_if(plans.front().steps, meets));
    const std::vector<size_t> bytes = bytes_of_a_token(plans, *layout.hosts);
    const size_t most = *std::ranges::max_element(bytes);
    plan.exchange_bytes = most / std::max(1U, plan.exchanges_per_token);
    const size_t of_one = std::max<size_t>(1, plan.exchange_bytes);
    auto opened = group_.open_links(std::max(kLargeBytes, of_one));
    if (!opened) return std::unexpected(opened.error());
    auto own = describe(layout, settings, std::move(alone));
    if (!own) return std::unexpected(own.error());
    // Memory has been measured on all hosts before links are.
    if (auto ready = group_.gather(Json::object()); !ready) return std::unexpected(ready.error());
    const auto small = measure_links(group_, of_one, kExchanges);
    if (!small) return std::unexpected(small.error());
    const auto large = measure_links(group_, kLargeBytes, kLargeExchanges);
    if (!large) return std::unexpected(large.error());
    (*own)["exchange_seconds"] = *small;
    (*own)["large_seconds"] = *large;
    const auto all = group_.gather(*own);
    if (!all) return std::unexpected(all.error());
    return join(*all, std::move(plan));
  }

 private:
  // The figures of this host's ranks among all.
  Result<Json> describe(const ModelLayout& layout, const Settings& settings, ModelLayout alone) {
    const auto speeds = machine_.meter.read_speeds(layout.places);
    if (!speeds) return std::unexpected(speeds.error());
    ModelLayout all = layout;
    all.places = layout.places_of_hosts;
    const std::vector<ReadBytes> read = bytes_per_token(model_, all);
    const std::span<const ReadBytes> own =
        std::span(read).subspan(layout.first_rank(), layout.places.size());
    Json host = {{"workers", 0U},
                 {"ranks", layout.places.size()},
                 {"weights", uint64_t{0}},
                 {"kv", uint64_t{0}},
                 {"scratch", uint64_t{0}},
                 {"buffers", layout.host_buffer_bytes},
                 {"read", uint64_t{0}},
                 {"rate", 0.0},
                 {"read_seconds", read_seconds(own, *speeds, /*gpu_count=*/0)}};
    const auto add = [&](const char* key, auto value) {
      host[key] = host[key].get<decltype(value)>() + value;
    };
    for (size_t rank = 0; rank < layout.places.size(); ++rank) {
      const RankSizes& sizes = layout.sizes[rank];
      add("workers", static_cast<uint32_t>(layout.places[rank].cpus.size()));
      add("weights", uint64_t{sizes.weight_bytes});
      add("kv", uint64_t{sizes.kv_bytes});
      add("scratch", uint64_t{sizes.scratch_bytes});
      add("read", own[rank].all);
      add("rate", (*speeds)[rank]);
    }
    host["alone"] = speed_alone(std::move(alone), settings, *speeds);
    return host;
  }

  // Tokens per second of the whole model on this host; 0: no space.
  double speed_alone(ModelLayout alone, const Settings& settings,
                     const std::vector<double>& speeds) const {
    if (!fits_memory(model_, settings, machine_, alone)) return 0;
    return 1 / read_seconds(bytes_per_token(model_, alone), speeds, /*gpu_count=*/0);
  }

  Result<HostsPlan> join(const std::vector<Json>& all, HostsPlan plan) const {
    double large = 0;
    try {
      for (size_t index = 0; index < all.size(); ++index) {
        const Json& from = all[index];
        HostsPlan::Host& host = plan.hosts.emplace_back();
        host.name = group_.name(index);
        host.rank_count = from.at("ranks").get<uint32_t>();
        host.worker_count = from.at("workers").get<uint32_t>();
        host.weight_bytes = from.at("weights").get<uint64_t>();
        host.kv_bytes = from.at("kv").get<uint64_t>();
        host.scratch_bytes = from.at("scratch").get<uint64_t>();
        host.buffer_bytes = from.at("buffers").get<uint64_t>();
        host.read_bytes = from.at("read").get<uint64_t>();
        host.bytes_per_second = from.at("rate").get<double>();
        host.read_seconds = from.at("read_seconds").get<double>();
        host.tokens_per_second_alone = from.at("alone").get<double>();
        plan.read_seconds = std::max(plan.read_seconds, host.read_seconds);
        plan.exchange_seconds =
            std::max(plan.exchange_seconds, from.at("exchange_seconds").get<double>());
        large = std::max(large, from.at("large_seconds").get<double>());
      }
    } catch (const nlohmann::json::exception& error) {
      return invalid_input("another host sends what this version does not understand ({})",
                           error.what());
    }
    const auto moved = static_cast<double>(2 * kLargeBytes * (all.size() - 1));
    plan.link_bytes_per_second = moved / large;
    plan.tokens_per_second =
        1 / (plan.read_seconds + plan.exchanges_per_token * plan.exchange_seconds);
    plan.verdict = verdict(plan);
    return plan;
  }

  static std::string verdict(const HostsPlan& plan) {
    const auto best =
        std::ranges::max_element(plan.hosts, {}, &HostsPlan::Host::tokens_per_second_alone);
    const size_t count = plan.hosts.size();
    if (best->tokens_per_second_alone == 0) {
      return fmt::format("no host has space for the model by itself: {} hosts it is", count);
    }
    const double ratio = plan.tokens_per_second / best->tokens_per_second_alone;
    if (ratio < 1) {
      return fmt::format("{} alone would generate {:.2f} times as fast: leave the others out",
                         best->name, 1 / ratio);
    }
    return fmt::format("{} hosts generate {:.2f} times as fast as {} alone", count, ratio,
                       best->name);
  }

  const Model& model_;
  const Machine& machine_;
  HostGroup& group_;
};

Result<HostsPlan> plan_in_group(HostGroup& group, const GgufFile& file, const Model& model,
                                const EngineOptions& options, const Machine& machine,
                                RankChoice choice) {
  const ModelLayout alone = choice.layout;
  ModelLayout& layout = choice.layout;
  const KernelTable& kernels = *choice.settings.kernels;
  auto agreed = agree_on_ranks(group, file, model, options, kernels, layout);
  if (!agreed) return std::unexpected(agreed.error());
  auto sized = size_context(model, choice.settings, machine, layout);
  agreed = agree_on_context(group, model, {.sized = std::move(sized)}, layout);
  if (!agreed) return std::unexpected(agreed.error());
  auto plan = HostPlanner(model, machine, group).plan(layout, choice.settings, alone);
  if (plan) plan->model = describe_model(file, model, options, layout).name;
  return plan;
}

}  // namespace

Result<HostsPlan> plan_hosts(const EngineOptions& options) {
  return plan_hosts(options, Machine::read(/*with_gpus=*/true));
}

Result<HostsPlan> plan_hosts(const EngineOptions& options, const Machine& machine) {
  const auto opened = open_planned_model(options, machine);
  if (!opened) return std::unexpected(opened.error());
  const auto& [file, model, draft, parsed] = *opened;
  auto choice = lay_out_ranks(model, parsed, machine, {});
  if (!choice) return std::unexpected(choice.error());
  if (auto checked = check_host_options(options, choice->layout); !checked) {
    return std::unexpected(checked.error());
  }
  if (choice->layout.rules().traits.joined_by_nccl) {
    return invalid_input(
        "what GPUs of several hosts take for their sums is not foretold: leave out --hosts to plan "
        "one host's GPUs, or use --devices cpu to plan the hosts' processors");
  }
  auto group = HostGroup::form(options.hosts);
  if (!group) return std::unexpected(group.error());
  auto plan = plan_in_group(**group, file, model, options, machine, std::move(*choice));
  if (!plan) (*group)->fail(plan.error());
  return plan;
}

}  // namespace lockstep
