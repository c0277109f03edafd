// Prompts on a GPU rank: which tokens the library multiplies, in what memory, and what becomes of a
// pass that it refuses. On simulated GPUs.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/engine/kernels/cuda/host_matrix_library.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

LoadedModelOptions on_simulated_gpu() {
  return {.kv_format = KvFormat::kF16, .gpus = &test_gpus()};
}

// The model's smallest panel is of 64 rows: its gate has 16 of them.
TEST(GpuPrompts, panels_of_any_size_give_the_same_bits) {
  const RandomModel model(Format::kQ5_K, Format::kQ8_0, /*seed=*/40);
  const auto tokens = some_tokens(9, 2);
  LoadedModelOptions options = on_simulated_gpu();
  LoadedModel large(model.path(), options);
  const LogitRows wanted = large.compute_alone(tokens, 128);
  options.panel_limits = {.rows = 64};
  LoadedModel small(model.path(), options);
  const size_t before = host_gpu(0).counts().launches;
  expect_same_bits(wanted, small.compute_alone(tokens, 128));
  const size_t launches = host_gpu(0).counts().launches - before;
  large.compute_alone(tokens, 128);
  EXPECT_GT(launches, host_gpu(0).counts().launches - before - launches);
  // Smaller panels need less memory: of 1,024 rows 64 are there at a time.
  EXPECT_GT(large.plan().scratch_bytes, small.plan().scratch_bytes + 900 * 256 * sizeof(uint16_t));
}

// CUDA would keep the thread that is a thousand ahead, whatever its deadline is. By panels as small
// as they can be, so that few layers have many launches.
TEST(GpuPrompts, a_long_pass_waits_for_the_gpu_every_few_hundred_launches) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/44, /*window=*/0, /*layers=*/6);
  host_gpu(0).reset();
  LoadedModelOptions options = on_simulated_gpu();
  options.panel_limits = {.rows = 64};
  LoadedModel loaded(model.path(), options);
  const HostGpu::Counts before = host_gpu(0).counts();
  loaded.compute_alone(some_tokens(2, 2), 2);
  const HostGpu::Counts after = host_gpu(0).counts();
  EXPECT_GT(after.launches - before.launches, 2 * GpuProgram::kLaunchesAtOnce);
  EXPECT_LT(after.ahead_max, 3 * GpuProgram::kLaunchesAtOnce / 2);
  EXPECT_GE(after.ahead_max, GpuProgram::kLaunchesAtOnce);
}

// The arguments of every launch of finish_panel.
std::vector<GpuPanelSums> finished;

void note_finish(void* stream, const GpuPanelSums& sums) {
  finished.push_back(sums);
  gpu_finish_panel(stream, sums);
}

// A block takes kGpuFinishTokens tokens: one that has none would be launched in vain.
TEST(GpuPrompts, every_block_of_what_follows_a_product_has_tokens) {
  const RandomModel model(Format::kQ4_0, Format::kQ8_0, /*seed=*/45);
  GpuKernels kernels = *test_gpus().kernels;
  kernels.finish_panel = note_finish;
  GpuPlatform platform = test_gpus();
  platform.kernels = &kernels;
  LoadedModel loaded(model.path(), {.kv_format = KvFormat::kF16, .gpus = &platform});
  for (const size_t tokens : {size_t{1}, size_t{70}}) {
    finished.clear();
    loaded.compute_alone(some_tokens(tokens, 2), tokens);
    EXPECT_FALSE(finished.empty());
    size_t in_place = 0;
    for (const GpuPanelSums& sums : finished) {
      EXPECT_EQ(sums.product.token_limit, tokens);
      EXPECT_EQ(sums.grid_rows, (tokens + kGpuFinishTokens - 1) / kGpuFinishTokens);
      if (sums.sums == nullptr) ++in_place;
    }
    EXPECT_GT(in_place, 0U);
    EXPECT_LT(in_place, finished.size());
  }
}

// A panel is taken after all else, so nothing that a pass still reads lies there.
TEST(GpuPrompts, have_memory_of_their_own_that_is_taken_at_the_load) {
  const RandomModel model(Format::kQ4_0, Format::kF16, /*seed=*/41);
  const auto tokens = some_tokens(70, 2);
  LoadedModel loaded(model.path(), on_simulated_gpu());
  const auto& areas = std::get<GpuAreas>(loaded.plan().areas);
  ASSERT_TRUE(areas.panel);
  EXPECT_GE(areas.panel_sums.bytes, areas.panel.bytes + 1024 * 256 * 2);
  EXPECT_GE(areas.library.bytes, areas.panel_sums.bytes + 1024 * 128 * 4);
  const HostGpu::Counts before = host_gpu(0).counts();
  loaded.compute_alone(tokens, 128);
  const HostGpu::Counts after = host_gpu(0).counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pinnings, before.pinnings);
  // F32 weights are not rounded to bf16, so nothing is unpacked.
  const RandomModel floats(Format::kF32, Format::kF32, /*seed=*/42);
  LoadedModel unpacked(floats.path(), on_simulated_gpu());
  const auto& none = std::get<GpuAreas>(unpacked.plan().areas);
  EXPECT_FALSE(none.panel);
  EXPECT_FALSE(none.library);
}

TEST(GpuPrompts, a_product_that_the_library_refuses_fails_the_pass_and_those_after_it) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/43);
  const auto tokens = some_tokens(4, 1);
  const auto expect_failure = [](const auto& computes) {
    try {
      computes();
      ADD_FAILURE() << "it was computed";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("the library refused a product"), std::string::npos)
          << error.what();
    }
  };
  {
    LoadedModel loaded(model.path(), on_simulated_gpu());
    loaded.compute_alone(tokens, 4);
    refuse_library_products(3);
    for (int pass = 0; pass < 2; ++pass) {
      expect_failure([&] { loaded.compute_alone(tokens, 4); });
      allow_library_products();
    }
  }
  refuse_library_products(0);
  expect_failure([&] { const LoadedModel loaded(model.path(), on_simulated_gpu()); });
  allow_library_products();
  LoadedModel again(model.path(), on_simulated_gpu());
  again.compute_alone(tokens, 4);
}

}  // namespace
}  // namespace lockstep
