// GPUs with whole layers each, as late as their streams may run, and passes in which one is lost or
// hangs: it is told by name. The GPUs are simulated.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/graph/activation_buffers.h"
#include "engine/planner/gpu_gap.h"
#include "engine/planner/layer_split.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/value_or_throw.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int kGpus = 3;

class GpuLayerFaults : public testing::Test {
 protected:
  ~GpuLayerFaults() override { reset(); }

  static void reset() {
    for (int gpu = 0; gpu < kGpus; ++gpu) host_gpu(gpu).reset();
  }

  LoadedModelOptions on_three(size_t chunk_tokens = 0) {
    LoadedModelOptions options = on_gpu();
    options.chunk_tokens = chunk_tokens;
    options.gpus = &platform_;
    options.strategy = Strategy::kLayers;
    options.shares = {1, 1, 1};
    return options;
  }

  static std::string failure_of(LoadedModel& loaded) {
    try {
      loaded.compute_alone(some_tokens(8, 1), 8);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  GpuPlatform platform_ = test_gpus();
  const RandomModel model_{Format::kQ8_0, Format::kQ8_0, /*seed=*/74};
};

TEST_F(GpuLayerFaults, streams_that_run_late_change_nothing) {
  const auto tokens = some_tokens(9, 4);
  const LogitRows wanted = LoadedModel(model_.path(), on_gpu()).compute_alone(tokens, 4);
  for (const bool peer_access : {false, true}) {
    platform_.peer_access = peer_access;
    for (int late = 0; late < 1 << kGpus; ++late) {
      for (const size_t chunk : {0U, 2U}) {
        LoadedModel loaded(model_.path(), on_three(chunk));
        for (int gpu = 0; gpu < kGpus; ++gpu) host_gpu(gpu).run_late((late >> gpu & 1) != 0);
        expect_same_bits(wanted, loaded.compute_alone(tokens, 9));
        for (int gpu = 0; gpu < kGpus; ++gpu) host_gpu(gpu).run_late(false);
      }
    }
  }
}

// Those that wait for it end with it, and are not named.
TEST_F(GpuLayerFaults, a_lost_gpu_fails_the_pass_by_name) {
  for (int lost = 0; lost < kGpus; ++lost) {
    for (const size_t calls_left : {0U, 1U, 2U, 3U, 4U, 11U}) {
      SCOPED_TRACE(fmt::format("gpu{} after {} calls", lost, calls_left));
      {
        LoadedModel loaded(model_.path(), on_three(calls_left % 2 == 0 ? 0 : 1));
        EXPECT_EQ(failure_of(loaded), "");
        host_gpu(lost).lose(calls_left);
        EXPECT_THAT(failure_of(loaded), StartsWith(fmt::format("gpu{}: ", lost)));
        EXPECT_THAT(failure_of(loaded), HasSubstr("the GPU is lost"));
      }
      reset();
    }
  }
}

// In several chunks those before it find no space for more rows.
TEST_F(GpuLayerFaults, a_gpu_that_hangs_is_named_and_not_those_that_wait_for_it) {
  platform_.settings.pass_deadline = std::chrono::seconds(1);
  for (int each = 0; each < 2 * kGpus; ++each) {
    const int hanging = each / 2;
    const size_t chunk = each % 2 == 0 ? 0 : 1;
    SCOPED_TRACE(fmt::format("gpu{}, chunks of {}", hanging, chunk));
    {
      LoadedModel loaded(model_.path(), on_three(chunk));
      EXPECT_EQ(failure_of(loaded), "");
      host_gpu(hanging).hang(std::chrono::milliseconds(10));
      EXPECT_THAT(failure_of(loaded),
                  StartsWith(fmt::format("gpu{}: what it was to do was not done", hanging)));
      for (int rank = 0; rank < kGpus; ++rank) {
        EXPECT_EQ(loaded.ranks()[static_cast<size_t>(rank)].has_waited_in_vain(),
                  chunk == 0 ? rank < hanging : rank != hanging);
      }
    }
    reset();
  }
}

// A pass's rows go over each border once, and passes that generate launch recordings.
TEST_F(GpuLayerFaults, ranks_give_each_residual_once_and_allocate_nothing) {
  LoadedModelOptions options = on_three();
  options.generated = true;
  LoadedModel loaded(model_.path(), options);
  std::vector<HostGpu::Counts> before;
  for (int gpu = 0; gpu < kGpus; ++gpu) before.push_back(host_gpu(gpu).counts());
  constexpr size_t kTokens = 5;
  loaded.compute_alone(some_tokens(kTokens, 2), 1);
  const size_t row_bytes = scratch_row_bytes(loaded.plan().hidden.width);
  for (size_t rank = 0; rank < kGpus; ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(loaded.ranks()[rank].counters(0).exchange_bytes.value(),
              rank == 0 ? 0 : kTokens * row_bytes);
    const HostGpu::Counts after = host_gpu(static_cast<int>(rank)).counts();
    EXPECT_EQ(after.graph_launches - before[rank].graph_launches, kTokens);
    EXPECT_EQ(after.allocations, before[rank].allocations);
  }
}

// Those of all families whose operations GPUs have: with windows, experts, caps, post norms.
TEST_F(GpuLayerFaults, every_familys_fixture_has_the_bits_of_one_gpu) {
  const std::string folder = source_dir() + "/tests/fixtures/families/";
  std::ifstream file(folder + "index.json");
  const auto tokens = some_tokens(11, 3);
  size_t count = 0;
  const auto index = nlohmann::json::parse(file);
  for (const auto& model : index.at("models")) {
    const std::string path = folder + model.at("file").get<std::string>();
    SCOPED_TRACE(path);
    const GgufFile opened = value_or_throw(GgufFile::open(path));
    const Graph graph = value_or_throw(build_model({.file = opened})).graph;
    const auto is_unreadable = [](const GraphNode& node) {
      return node.operation == Operation::kAttention && node.head_dimension % 8 != 0;
    };
    if (std::ranges::any_of(graph.nodes(), is_unreadable)) continue;
    if (find_gpu_gap(graph, {}, /*alone=*/true)) continue;
    LoadedModelOptions options = on_gpu();
    options.strategy = Strategy::kLayers;
    options.shares = {1, 1};
    if (!split_layers(graph, options.shares)) continue;
    ++count;
    LoadedModel one(path, on_gpu());
    LoadedModel two(path, options);
    expect_same_bits(one.compute_alone(tokens, 7), two.compute_alone(tokens, 7));
    expect_same_bits(generate_after_prompt(one, tokens, 8), generate_after_prompt(two, tokens, 8));
  }
  EXPECT_GT(count, 20U);
}

}  // namespace
}  // namespace lockstep
