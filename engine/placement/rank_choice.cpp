#include "engine/placement/rank_choice.h"

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/placement/layout_speed.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/placer.h"

namespace lockstep {
namespace {

// Two measurements of one shared machine differ by some percent; a layout that changed at every
// start would have the weights read anew at each of them.
constexpr double kOneRankFaster = 1.1;

// One rank on these devices. If others might have been chosen, they have been given up, for a
// reason that stays.
Settings on_one_rank(Settings settings, const DeviceChoice& devices) {
  settings = with_one_rank(std::move(settings));
  settings.devices = devices;
  return settings;
}

// Measures a layout whose ranks are nodes'.
class NodeMeasurement {
 public:
  NodeMeasurement(const Model& model, const Settings& settings, const Machine& machine,
                  const ModelLayout& layout)
      : model_(model), settings_(settings), machine_(machine), layout_(layout) {}

  Result<NodeSpeed> measure(size_t kv_pages) const {
    auto bandwidths = machine_.meter.read_speeds(layout_.places);
    if (!bandwidths) return std::unexpected(bandwidths.error());
    NodeSpeed speed;
    speed.bytes_per_second = std::move(*bandwidths);
    speed.read_seconds =
        read_seconds(bytes_per_token(model_, layout_), speed.bytes_per_second, /*gpu_count=*/0);
    if (layout_.places.size() == 1) {
      speed.one_rank_tokens_per_second = speed.tokens_per_second();
      return speed;
    }
    speed.exchanges_per_token = exchanges_per_token(model_, layout_);
    const size_t columns = model_.graph.columns(model_.graph.nodes().front().output);
    const auto exchange = machine_.meter.exchange_seconds(layout_.places, columns * sizeof(float));
    if (!exchange) return std::unexpected(exchange.error());
    speed.seconds_per_exchange = *exchange;
    const auto alone = estimate_one_rank(kv_pages);
    if (!alone) return std::unexpected(alone.error());
    speed.one_rank_tokens_per_second = *alone;
    return speed;
  }

 private:
  // Tokens per second; 0 where one rank has no space.
  Result<double> estimate_one_rank(size_t kv_pages) const {
    const Settings settings = on_one_rank(settings_, layout_.devices);
    auto alone = Placer(model_, settings, machine_).place();
    if (!alone) return std::unexpected(alone.error());
    alone->sizes = rank_sizes(model_, alone->split, alone->plan_options, kv_pages, alone->places,
                              alone->gpus_linked);
    if (first_misfit(*alone, machine_)) return 0.0;
    const auto bandwidths = machine_.meter.read_speeds(alone->places);
    if (!bandwidths) return std::unexpected(bandwidths.error());
    return bandwidths->front() / static_cast<double>(bytes_per_token(model_, *alone).front().all);
  }

  const Model& model_;
  const Settings& settings_;
  const Machine& machine_;
  const ModelLayout& layout_;
};

// Chooses how many ranks compute, of a layout with one per node.
class RankChooser {
 public:
  RankChooser(const Model& model, const Settings& settings, const Machine& machine)
      : model_(model), settings_(settings), machine_(machine) {}

  Result<RankChoice> choose(ModelLayout layout, std::optional<size_t> kept_ranks) const {
    RankChoice choice = {.settings = settings_, .layout = std::move(layout), .reason = {}};
    if (!may_choose_ranks(settings_, choice.layout)) return choice;
    const size_t rank_count = choice.layout.places.size();
    if (kept_ranks == rank_count) return choice;
    if (kept_ranks == 1U) {
      choice.reason = "one rank, as those have that an earlier process left weights for";
      return take_one_rank(std::move(choice));
    }
    ModelLayout sized = choice.layout;
    if (!size_context(model_, settings_, machine_, sized)) return choice;
    auto speed = NodeMeasurement(model_, settings_, machine_, choice.layout)
                     .measure(sized.plan_options.kv_pages);
    if (!speed) {
      choice.reason =
          fmt::format("{} ranks, one per node; how fast they are could not be measured: {}",
                      rank_count, speed.error().message);
      return choice;
    }
    choice.speed = std::move(*speed);
    choice.reason = compare_with_one_rank(*choice.speed, rank_count);
    if (!prefers_one_rank(*choice.speed)) return choice;
    return take_one_rank(std::move(choice));
  }

 private:
  Result<RankChoice> take_one_rank(RankChoice choice) const {
    choice.settings = on_one_rank(std::move(choice.settings), choice.layout.devices);
    auto alone = Placer(model_, choice.settings, machine_).place();
    if (!alone) return std::unexpected(alone.error());
    choice.layout = std::move(*alone);
    return choice;
  }

  const Model& model_;
  const Settings& settings_;
  const Machine& machine_;
};

}  // namespace

Result<NodeSpeed> measure_node_speed(const Model& model, const Settings& settings,
                                     const Machine& machine, const ModelLayout& layout,
                                     size_t kv_pages) {
  return NodeMeasurement(model, settings, machine, layout).measure(kv_pages);
}

bool prefers_one_rank(const NodeSpeed& speed) {
  return speed.one_rank_tokens_per_second > kOneRankFaster * speed.tokens_per_second();
}

std::string compare_with_one_rank(const NodeSpeed& speed, size_t rank_count) {
  const double ours = speed.tokens_per_second();
  const double alone = speed.one_rank_tokens_per_second;
  if (alone == 0) {
    return fmt::format("one rank has no space for the model: {} ranks it is", rank_count);
  }
  const std::string costs = fmt::format(
      "the slowest rank reads its weights in {:.2f} ms, {} exchanges take {:.2f} ms; one rank "
      "alone reads all of them in {:.2f} ms",
      speed.read_seconds * 1e3, speed.exchanges_per_token,
      speed.exchanges_per_token * speed.seconds_per_exchange * 1e3, 1e3 / alone);
  if (ours > alone) {
    return fmt::format("{} ranks are {:.2f} times as fast as one: {}", rank_count, ours / alone,
                       costs);
  }
  return fmt::format("one rank is {:.2f} times as fast as {}: {}", alone / ours, rank_count, costs);
}

bool may_choose_ranks(const Settings& settings, const ModelLayout& layout) {
  const bool asked = settings.among_hosts || settings.rank_count != 0 ||
                     settings.worker_count != 0 || !settings.shares.empty() ||
                     settings.measure_shares;
  return !asked && layout.rules().traits.rank_count_is_free && layout.places.size() > 1;
}

Result<RankChoice> choose_ranks(const Model& model, const Settings& settings,
                                const Machine& machine, ModelLayout layout,
                                std::optional<size_t> kept_ranks) {
  return RankChooser(model, settings, machine).choose(std::move(layout), kept_ranks);
}

Result<RankChoice> lay_out_ranks(const Model& model, const Settings& settings,
                                 const Machine& machine, std::optional<size_t> kept_ranks) {
  const auto fitting = fit_to_model(model, settings);
  if (!fitting) return std::unexpected(fitting.error());
  auto layout = Placer(model, *fitting, machine).place();
  if (!layout) return std::unexpected(layout.error());
  auto choice = choose_ranks(model, *fitting, machine, std::move(*layout), kept_ranks);
  if (choice && !choice->reason.empty()) spdlog::info("ranks auto: {}", choice->reason);
  return choice;
}

}  // namespace lockstep
