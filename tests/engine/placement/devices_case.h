// Models laid out on simulated machines.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/draft_file.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/model_layout.h"
#include "engine/runtime/gpu/gpu_platform.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/placement/machine_of.h"
#include "tests/engine/placement/place_model.h"
#include "tests/paths.h"

namespace lockstep {

inline decltype(RankPlace::device) on_gpu(int index) {
  return GpuPlace{index};
}
inline decltype(RankPlace::device) on_node() {
  return NodePlace();
}

class DevicesTest : public ::testing::Test {
 protected:
  DevicesTest() {
    options_.model = source_dir() + "/config/demo.gguf";
    speeds_.clear();
    measured_.clear();
    node_speed_ = 1e11;
  }

  // Leaves ranks so much of its memory.
  static void leave(Gpu& gpu, uint64_t bytes) { gpu.free_bytes -= usable_bytes(gpu) - bytes; }

  // As fast as a test says, or else as the GPU's clock does.
  static Result<double> measure_read(const GpuPlatform&, const Gpu& gpu) {
    measured_.push_back(gpu.index);
    const auto set = speeds_.find(gpu.index);
    if (set == speeds_.end()) return gpu.bytes_per_second;
    if (set->second > 0) return set->second;
    return machine_refused("gpu{} does not answer", gpu.index);
  }

  // The machine that runs the test may not have the processors.
  static Result<std::vector<double>> read_node_speeds(std::span<const RankPlace> places) {
    return std::vector<double>(places.size(), node_speed_);
  }
  static Result<double> exchange_seconds(std::span<const RankPlace>, size_t) { return 1e-6; }

  Result<ModelLayout> split(const std::string& devices, const Topology& topology) {
    auto file = GgufFile::open(options_.model);
    if (!file) return std::unexpected(file.error());
    auto model = build_model({.file = *file});
    if (!model) return std::unexpected(model.error());
    options_.devices = devices;
    Machine machine = machine_of(topology, platform_);
    machine.meter = {.read_speeds = &read_node_speeds, .exchange_seconds = &exchange_seconds};
    auto settings = parse(options_, machine);
    if (!settings) return std::unexpected(settings.error());
    const auto draft = open_draft_file(options_, *file, *settings, *model);
    if (!draft) return std::unexpected(draft.error());
    auto layout = Placer(*model, *settings, machine).place();
    if (layout) {
      sized_ = size_context(*model, *settings, machine, *layout);
      trained_tokens_ = model->trained_context_tokens;
    }
    return layout;
  }

  // That `devices` is refused with these words.
  void expect_refusal(const std::string& devices, const Topology& topology,
                      const std::string& words) {
    const auto refused = split(devices, topology);
    ASSERT_FALSE(refused.has_value()) << devices;
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr(words));
  }

  // The bytes of its GPU's memory that a rank takes with a cache of one page; 0: it was refused.
  uint64_t least_bytes(const std::string& devices, const Topology& topology, size_t rank) {
    options_.context_tokens = kPageTokens;
    options_.kv_pages = 1;
    const auto layout = split(devices, topology);
    options_.context_tokens = options_.kv_pages = 0;
    return layout.has_value() && sized_.has_value() ? layout->sizes[rank].gpu_bytes() : 0;
  }

  static std::vector<int> nodes_of(const ModelLayout& layout) {
    std::vector<int> nodes;
    for (const RankPlace& place : layout.places) nodes.push_back(place.node);
    return nodes;
  }

  // The nodes of the machine that runs the test, and these GPUs.
  Machine this_machine_with(std::vector<Gpu> gpus) const {
    Machine machine = Machine::read(/*with_gpus=*/false);
    machine.topology.gpus = std::move(gpus);
    machine.gpu_platform = platform_;
    return machine;
  }

  static Topology machine_with_one_gpu() {
    Topology topology = machine_with_gpus();
    topology.gpus.erase(topology.gpus.begin(), topology.gpus.end() - 1);
    topology.gpus[0].links = {GpuLink::kSelf};
    return topology;
  }

  static Topology machine_with_linked_gpus() {
    Topology topology = machine_with_gpus();
    for (Gpu& gpu : topology.gpus) gpu.links.assign(topology.gpus.size(), GpuLink::kNvlink);
    return topology;
  }

  static inline std::map<int, double> speeds_;  // by Gpu::index; 0: it fails
  static inline std::vector<int> measured_;     // Gpu::index
  static inline double node_speed_ = 0;         // bytes per second of each node
  const GpuPlatform without_nccl_ = {.measure_read = &measure_read};
  const GpuPlatform* platform_ = &without_nccl_;  // the machine's
  EngineOptions options_;
  Result<void> sized_;
  size_t trained_tokens_ = 0;
};

}  // namespace lockstep
