#include "engine/placement/device_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/base/check.h"
#include "engine/placement/layout_speed.h"

namespace lockstep {
namespace {

// As for the number of ranks (rank_choice.cpp): a layout that changed at every start would have the
// weights read anew at each of them.
constexpr double kDevicesFaster = 1.1;

// An exchange takes so much longer where a GPU is among the ranks: launches, writing to the host's
// memory over PCIe and waiting for the stream. Between an H200 and one node 10 to 13 us were
// measured.
constexpr double kGpuExchangeSeconds = 12e-6;

// An exchange of one token's activation between the nodes' ranks; 0 where there is one rank, or
// where it cannot be measured.
double node_exchange_seconds(const Model& model, const Machine& machine,
                             const ModelLayout& layout) {
  const auto nodes = layout.node_places();
  if (nodes.size() < 2) return 0;
  const size_t columns = model.graph.columns(model.graph.nodes().front().output);
  return machine.meter.exchange_seconds(nodes, columns * sizeof(float)).value_or(0);
}

std::string text_of(const DeviceOption& option, std::string_view verb) {
  return fmt::format("{}{} {:.1f} tokens/s ({:.1f} ms to read, {:.1f} ms for {} exchanges)",
                     option.names, verb, 1 / option.seconds_per_token(), option.read_seconds * 1e3,
                     option.exchanges * option.seconds_per_exchange * 1e3, option.exchanges);
}

}  // namespace

Result<DeviceOption> device_option(const Model& model, const Machine& machine,
                                   const ModelLayout& layout) {
  std::vector<double> speeds;
  for (const int gpu : layout.devices.gpus) {
    CHECK(layout.gpu_speeds.has_value(), "how fast gpu{} is is not known", gpu);
    speeds.push_back(layout.gpu_speeds->bytes_per_second.at(gpu));
  }
  const size_t gpu_count = speeds.size();
  const auto measured = machine.meter.read_speeds(layout.node_places());
  if (!measured) return std::unexpected(measured.error());
  speeds.insert(speeds.end(), measured->begin(), measured->end());
  DeviceOption option{
      .names = device_names(layout.devices),
      .read_seconds = read_seconds(bytes_per_token(model, layout), speeds, gpu_count)};
  if (speeds.size() == 1) return option;
  option.exchanges = exchanges_per_token(model, layout);
  option.seconds_per_exchange =
      node_exchange_seconds(model, machine, layout) + (gpu_count == 0 ? 0 : kGpuExchangeSeconds);
  return option;
}

size_t choose_option(std::span<const DeviceOption> options) {
  const auto fastest = std::ranges::min_element(options, {}, &DeviceOption::seconds_per_token);
  const bool clearly =
      options.front().seconds_per_token() > kDevicesFaster * fastest->seconds_per_token();
  return clearly ? static_cast<size_t>(fastest - options.begin()) : 0;
}

std::string compare_options(std::span<const DeviceOption> options, size_t chosen) {
  std::string text = text_of(options[chosen], " generate at most");
  for (size_t index = 0; index < options.size(); ++index) {
    if (index == chosen) continue;
    const bool faster = options[index].seconds_per_token() < options[chosen].seconds_per_token();
    text += ", " + text_of(options[index], "") + (faster ? ", which is not a tenth faster" : "");
  }
  return text;
}

}  // namespace lockstep
