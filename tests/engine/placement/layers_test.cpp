// Whole layers by rank (--strategy layers) on simulated machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/placement/devices_case.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class LayersTest : public DevicesTest {};

// Without NCCL, and whichever links there are: rows go over peer memory, or through the host's.
TEST_F(LayersTest, gpus_have_whole_layers_each_where_that_is_asked_for) {
  options_.strategy = "layers";
  for (const bool linked : {false, true}) {
    SCOPED_TRACE(linked);
    const auto layout = split("gpu", linked ? machine_with_linked_gpus() : machine_with_gpus());
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
    EXPECT_EQ(layout->places.size(), 4U);
    EXPECT_EQ(layout->split.strategy, Strategy::kLayers);
    EXPECT_EQ(layout->split.borders.size(), 3U);
    EXPECT_EQ(layout->nccl_bytes, 0U);
    EXPECT_EQ(layout->plan_options.batch_tokens, 8192U);
    EXPECT_EQ(layout->plan_options.chunk_tokens, 2048U);
    const auto through_host = HasSubstr("so layers' rows go through the host");
    EXPECT_EQ(::testing::Value(layout->devices.reason, through_host), !linked);
    for (size_t rank = 0; rank < layout->sizes.size(); ++rank) {
      const RankSizes& sizes = layout->sizes[rank];
      EXPECT_EQ(sizes.mailbox_bytes, 0U);
      EXPECT_GT(sizes.kv_bytes + sizes.weight_bytes, 0U);
      // The last rank has the first layers, and the first one the results of all chunks.
      EXPECT_EQ(sizes.handed_bytes > 0, !linked && rank < 3) << rank;
      EXPECT_EQ(sizes.layer_bytes > 0, rank == 0 || (linked && rank < 3)) << rank;
    }
  }
  const auto one = split("gpu3", machine_with_one_gpu());
  ASSERT_TRUE(one.has_value()) << one.error().message;
  EXPECT_TRUE(one->split.borders.empty());
}

// The draft model has whole layers on the same GPUs, beside which the model's are chosen.
TEST_F(LayersTest, layers_are_placed_beside_a_draft_models) {
  options_.strategy = "layers";
  options_.context_tokens = kPageTokens;
  options_.kv_pages = 1;
  options_.draft_model = options_.model;
  const Topology large = machine_with_linked_gpus();
  const auto even = split("gpu0,gpu1", large);
  ASSERT_TRUE(even.has_value()) << even.error().message;
  EXPECT_EQ(even->draft->split.strategy, Strategy::kLayers);
  for (size_t rank = 0; rank < 2; ++rank) {
    Topology small = large;
    leave(small.gpus[static_cast<size_t>(even->devices.gpus[rank])],
          even->sizes[rank].gpu_bytes() + even->draft->sizes[rank].gpu_bytes() - 1);
    const auto layout = split("gpu0,gpu1", small);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    EXPECT_TRUE(sized_.has_value()) << sized_.error().message;
    EXPECT_NE(layout->split.borders, even->split.borders);
  }
}

// A GPU that has no memory for the layers that would be fastest gets fewer.
TEST_F(LayersTest, gpus_get_layers_that_they_have_memory_for) {
  options_.strategy = "layers";
  options_.context_tokens = kPageTokens;
  options_.kv_pages = 1;
  for (const bool linked : {false, true}) {
    const Topology large = linked ? machine_with_linked_gpus() : machine_with_gpus();
    const auto even = split("gpu0,gpu1", large);
    ASSERT_TRUE(even.has_value()) << even.error().message;
    for (size_t rank = 0; rank < 2; ++rank) {
      SCOPED_TRACE(fmt::format("linked {}, rank {}", linked, rank));
      Topology small = large;
      leave(small.gpus[static_cast<size_t>(even->devices.gpus[rank])],
            even->sizes[rank].gpu_bytes() - 1);
      const auto layout = split("gpu0,gpu1", small);
      ASSERT_TRUE(layout.has_value()) << layout.error().message;
      ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
      EXPECT_LT(layout->sizes[rank].weight_bytes, even->sizes[rank].weight_bytes);
      EXPECT_GT(layout->sizes[1 - rank].weight_bytes, even->sizes[1 - rank].weight_bytes);
    }
  }
}

// No choice of layers helps: the refusal names the GPU.
TEST_F(LayersTest, a_model_that_fits_in_no_way_is_refused) {
  options_.strategy = "layers";
  Topology small = machine_with_linked_gpus();
  for (Gpu& gpu : small.gpus) leave(gpu, 1 << 20);
  const auto layout = split("gpu0,gpu1", small);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  ASSERT_FALSE(sized_.has_value());
  EXPECT_THAT(sized_.error().message, HasSubstr("rank 0 needs"));
}

TEST_F(LayersTest, whole_layers_are_refused_of_nodes_and_of_too_many_gpus) {
  options_.strategy = "layers";
  expect_refusal("cpu", machine_with_gpus(), "strategy layers is for GPUs alone, not for node0");
  expect_refusal("all", machine_with_one_gpu(), "strategy layers is for GPUs alone, not for gpu3");
  options_.exchange_format = "bf16";
  expect_refusal("gpu", machine_with_gpus(), "use --exchange-format f32 or --strategy reduce");
}

}  // namespace
}  // namespace lockstep
