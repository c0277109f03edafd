// The placement of a mixture's experts, layer by layer, on GPUs and nodes of simulated machines.
#include "engine/placement/expert_placement.h"

#include "engine/machine/device_choice.h"
#include "engine/placement/model_info.h"
#include "tests/engine/placement/devices_case.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Two layers with experts.
class ExpertPlacement : public DevicesTest {
 protected:
  ExpertPlacement() {
    options_.model = source_dir() + "/tests/fixtures/logits/mixtral-mqa-f32.gguf";
    options_.shares = {1, 1, 1};
  }

  Result<ModelLayout> place(const Topology& topology) {
    return split("gpu3,node0,node1", topology);
  }

  // Sizes of the GPU's rank with the experts of so many layers and so many pages.
  RankSizes sizes_with(uint32_t gpu_layers, uint32_t pages) {
    const EngineOptions before = options_;
    options_.gpu_expert_layers = gpu_layers;
    options_.context_tokens = kPageTokens;
    options_.kv_pages = pages;
    const auto layout = place(machine_with_one_gpu());
    options_ = before;
    return layout.has_value() && sized_.has_value() ? layout->sizes[0] : RankSizes();
  }

  // Whose GPU has space for so much.
  static Topology machine_with_gpu_memory(uint64_t bytes) {
    Topology topology = machine_with_one_gpu();
    Gpu& gpu = topology.gpus[0];
    gpu.free_bytes = gpu.free_bytes - usable_bytes(gpu) + bytes;
    return topology;
  }

  size_t layers_on(const Topology& topology, const std::string& words) {
    const auto layout = place(topology);
    if (!layout) {
      ADD_FAILURE() << layout.error().message;
      return 99;
    }
    EXPECT_TRUE(sized_.has_value()) << sized_.error().message;
    EXPECT_THAT(layout->devices.reason, HasSubstr(words));
    context_tokens_ = layout->context_tokens;
    return layout->gpu_expert_layers;
  }

  size_t context_tokens_ = 0;
  std::string reason_;
};

TEST_F(ExpertPlacement, the_gpu_has_the_last_layers_that_it_is_asked_to_have) {
  const auto file = GgufFile::open(options_.model);
  const auto model = build_model({.file = *file});
  options_.gpu_expert_layers = 1;
  const auto layout = place(machine_with_one_gpu());
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_THAT(layout->devices.reason,
              HasSubstr("the nodes have the experts of the first 1 of 2 layers, and the GPUs all "
                        "else: as asked for"));
  for (size_t rank = 0; rank < 3; ++rank) {
    const Plan plan = make_plan(model->graph, layout->split, rank, layout->options_of(rank));
    for (const GraphNode& node : model->graph.nodes()) {
      for (const WeightId expert : node.experts) {
        const bool is_first = model->graph.weights()[expert].name.starts_with("blk.0.");
        EXPECT_EQ(plan.weights[expert].size_bytes > 0, is_first == (rank != 0));
      }
    }
  }
  const auto fingerprint = [&] {
    return describe_model(*file, *model, options_, *place(machine_with_one_gpu())).fingerprint;
  };
  const std::string with_one = fingerprint();
  options_.gpu_expert_layers = 0;
  EXPECT_NE(fingerprint(), with_one);
}

TEST_F(ExpertPlacement, the_gpu_has_as_many_layers_as_it_has_space_for_beside_the_cache) {
  options_.context_tokens = 2 * kPageTokens;
  options_.sequence_count = 2;
  const uint64_t needed = sizes_with(1, 4).gpu_bytes();
  ASSERT_GT(needed, sizes_with(0, 4).gpu_bytes());
  EXPECT_EQ(layers_on(machine_with_gpu_memory(needed), "the first 1 of 2 layers"), 1U);
  EXPECT_EQ(layers_on(machine_with_gpu_memory(needed - 1), "the nodes have the experts, of which"),
            0U);
  EXPECT_EQ(
      layers_on(machine_with_gpu_memory(needed - 1), "no space beside a context of 128 tokens"),
      0U);
  // One layer's are always the nodes'.
  EXPECT_EQ(layers_on(machine_with_one_gpu(), "the first 1 of 2 layers"), 1U);
}

// However long it might be: of what is left beside all that is no expert, half is for the cache.
TEST_F(ExpertPlacement, an_automatic_context_leaves_half_of_the_space_to_experts) {
  options_.sequence_count = 512;
  const uint64_t without = sizes_with(0, 1).gpu_bytes();
  const uint64_t experts = sizes_with(1, 1).gpu_bytes() - without;
  const size_t all_pages = pages_for(trained_tokens_) * options_.sequence_count;
  const uint64_t page = sizes_with(0, 1).kv_bytes;
  ASSERT_GT(page * all_pages, 8 * experts);
  // The cache that would be wanted does not fit beside the experts, what is half of it does.
  EXPECT_EQ(layers_on(machine_with_gpu_memory(without + 4 * experts), "the first 1 of 2 layers"),
            1U);
  EXPECT_EQ(context_tokens_, trained_tokens_);
  EXPECT_EQ(layers_on(machine_with_gpu_memory(without + experts), "no space"), 0U);
}

TEST_F(ExpertPlacement, nodes_that_read_faster_keep_the_experts) {
  Topology topology = read_topology();  // nodes that can be measured
  topology.gpus = machine_with_one_gpu().gpus;
  topology.gpus[0].node = topology.nodes.front().id;
  options_.shares.clear();
  const auto layers_at = [&](double bytes_per_second) {
    speeds_[3] = bytes_per_second;
    const auto layout = split("all", topology);
    EXPECT_TRUE(layout.has_value()) << layout.error().message;
    reason_ = layout ? layout->devices.reason : "";
    return layout ? layout->gpu_expert_layers : 99;
  };
  EXPECT_EQ(layers_at(1e15), 1U);
  EXPECT_EQ(layers_at(1), 0U);
  EXPECT_THAT(reason_, HasSubstr("the nodes read their memory faster than the GPUs do theirs"));
  options_.gpu_expert_layers = 1;
  EXPECT_EQ(layers_at(1), 1U);
}

// Beside a GPU that has no space for all that is no expert.
TEST_F(ExpertPlacement, nodes_have_all_experts_and_the_part_of_the_rest_that_the_gpu_has_not) {
  options_.context_tokens = kPageTokens;
  options_.kv_pages = 1;
  options_.gpu_expert_layers = 0;
  const auto whole = place(machine_with_one_gpu());
  ASSERT_TRUE(whole.has_value() && sized_.has_value());
  const RankSizes& sizes = whole->sizes[0];
  Topology topology = machine_with_gpu_memory(sizes.gpu_bytes() - sizes.weight_bytes / 4);
  ASSERT_TRUE(place(topology).has_value());
  EXPECT_FALSE(sized_.has_value());
  options_.shares.clear();
  options_.gpu_expert_layers.reset();
  topology.gpus[0].bytes_per_second = 1e13;
  for (const std::string devices : {"gpu3,node0,node1", "auto"}) {
    node_speed_ = 1e6;
    const auto shared = split(devices, topology);
    ASSERT_TRUE(shared.has_value()) << shared.error().message;
    ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
    ASSERT_EQ(shared->places.size(), 3U) << shared->devices.reason;
    EXPECT_THAT(shared->devices.reason,
                HasSubstr("the part of all else for which the GPUs have no space"));
    EXPECT_EQ(shared->gpu_expert_layers, 0U);
    EXPECT_LT(shared->sizes[0].weight_bytes, sizes.weight_bytes);
    EXPECT_EQ(shared->places[0].expert_share, 0);
    for (const RankPlace& place : shared->node_places()) {
      EXPECT_GT(place.share, 0);
      EXPECT_GT(place.expert_share.value_or(0), 0);
    }
  }
}

TEST_F(ExpertPlacement, experts_lie_on_the_gpu_beside_a_draft_model) {
  options_.context_tokens = kPageTokens;
  options_.kv_pages = 1;
  options_.draft_model = options_.model;
  options_.gpu_expert_layers = 1;
  const auto layout = place(machine_with_one_gpu());
  ASSERT_TRUE(layout.has_value() && sized_.has_value() && layout->draft.has_value());
  const uint64_t both = layout->sizes[0].gpu_bytes() + layout->draft->sizes[0].gpu_bytes();
  options_.gpu_expert_layers.reset();
  EXPECT_EQ(layers_on(machine_with_gpu_memory(both), "the first 1 of 2 layers"), 1U);
  EXPECT_EQ(layers_on(machine_with_gpu_memory(both - 1), "no space"), 0U);
}

TEST_F(ExpertPlacement, what_cannot_be_asked_for_is_refused) {
  const Topology topology = machine_with_one_gpu();
  options_.gpu_expert_layers = 2;
  expect_refusal("gpu3,node0,node1", topology,
                 "gpu-expert-layers is 2, but of the 2 layers with experts one at least is the "
                 "nodes': use up to 1, or leave it out");
  options_.gpu_expert_layers = 1;
  options_.shares.clear();
  for (const std::string devices : {"gpu", "cpu"}) {
    expect_refusal(devices, topology, "for GPUs and nodes as ranks of one split");
  }
  options_.model = source_dir() + "/config/demo.gguf";
  expect_refusal("gpu3,node0,node1", topology, "this model is no mixture of experts");
  options_.gpu_expert_layers = 0;
  EXPECT_TRUE(split("cpu", topology).has_value());
}

}  // namespace
}  // namespace lockstep
