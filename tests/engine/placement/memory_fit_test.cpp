// Whether the context that is chosen finds space, on simulated machines.
#include "engine/placement/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "tests/engine/decoder_shape.h"
#include "tests/engine/placement/place_model.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1U << 20U;
constexpr uint64_t kGiB = 1U << 30U;

const PaperShape k8b = {"8b", 32, 4096, 14336, 32, 8, 128, 128256};
const PaperShape k7b = {"7b", 28, 3584, 18944, 28, 4, 128, 152064};
const PaperShape k1b = {"1b", 16, 2048, 8192, 32, 8, 64, 128256};
const PaperShape kHalfB = {"0.5b", 24, 1024, 4864, 16, 2, 64, 151936};

struct Pools {
  uint64_t gib_2mib = 0;
  uint64_t gib_1gib = 0;
};

// A machine whose nodes each have these pools, and so much free memory beside them.
Topology machine(int node_count, const Pools& pools, uint64_t free_bytes) {
  Topology topology;
  for (int id = 0; id < node_count; ++id) {
    topology.cpus.push_back({.id = id, .package = id, .core = 0, .node = id});
    Node node;
    node.id = id;
    node.cpu_count = 1;
    node.memory_bytes = (pools.gib_2mib + pools.gib_1gib + 2) * kGiB + free_bytes;
    node.free_bytes = free_bytes;
    for (int other = 0; other < node_count; ++other) {
      node.distances.push_back(other == id ? 10 : 20);
    }
    node.pools = {{2 * kMiB, pools.gib_2mib * 512, pools.gib_2mib * 512},
                  {kGiB, pools.gib_1gib, pools.gib_1gib}};
    topology.nodes.push_back(node);
  }
  return topology;
}

class MemoryFit : public ::testing::Test {
 protected:
  MemoryFit() {
    options_.devices = "cpu";
    options_.sequence_count = 64;  // more than there is space for
  }

  ModelLayout sized(const Model& model, const Topology& topology, const MemoryLimits& limits) {
    Machine simulated;
    simulated.topology = topology;
    simulated.memory = limits;
    auto settings = parse(options_, simulated, "scalar");
    EXPECT_TRUE(settings.has_value()) << settings.error().message;
    if (!settings) return {};
    settings->draft_model = draft_;
    auto layout = Placer(model, *settings, simulated).place();
    EXPECT_TRUE(layout.has_value()) << layout.error().message;
    if (!layout) return {};
    sized_ = size_context(model, *settings, simulated, *layout);
    if (sized_) {
      EXPECT_EQ(first_misfit(*layout, simulated), std::nullopt);
    }
    return *layout;
  }

  static uint64_t total_bytes(const ModelLayout& layout) {
    uint64_t bytes = 0;
    for (const RankSizes& sizes : layout.sizes) bytes += sizes.total_bytes();
    return bytes;
  }

  EngineOptions options_;
  const Model* draft_ = nullptr;  // a smaller model that drafts
  Result<void> sized_;
};

TEST_F(MemoryFit, an_automatic_context_fills_every_pool_and_fits) {
  constexpr uint64_t kFree = 6 * kGiB;
  for (const PaperShape& shape : {k8b, k7b, k1b, kHalfB}) {
    const Model model = make_model(shape);
    for (const int nodes : {1, 2}) {
      for (uint64_t gib = 8; gib <= 128; gib += 12) {
        SCOPED_TRACE(shape.name + ", nodes " + std::to_string(nodes) + ", pool " +
                     std::to_string(gib) + " GiB");
        options_.rank_count = static_cast<uint32_t>(nodes);
        const Topology topology = machine(nodes, {.gib_2mib = gib}, kFree);
        const ModelLayout layout = sized(model, topology, {kFree * static_cast<uint64_t>(nodes)});
        ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
        const bool all =
            layout.plan_options.kv_pages == pages_for(131072) * options_.sequence_count;
        const uint64_t pools = gib * static_cast<uint64_t>(nodes) * kGiB;
        EXPECT_TRUE(all || total_bytes(layout) > pools - pools / 16) << total_bytes(layout);
      }
    }
  }
}

// As Gemma 3's 27B: 62 layers, each sixth of which sees all tokens, the others 1,024.
TEST_F(MemoryFit, windows_take_a_quarter_of_a_long_contexts_cache_or_less) {
  PaperShape shape = {"27b", 62, 5376, 21504, 32, 16, 128, 262144};
  options_.sequence_count = 1;
  const auto cache_bytes = [&] {
    const Model model = make_model(shape);
    const ModelLayout layout = sized(model, machine(1, {.gib_2mib = 200}, 8 * kGiB), {8 * kGiB});
    EXPECT_TRUE(sized_.has_value()) << sized_.error().message;
    EXPECT_EQ(layout.context_tokens, 131072U);
    return layout.sizes.front().kv_bytes;
  };
  for (const uint32_t context : {0U, 131072U}) {  // automatic, and asked for
    options_.context_tokens = context;
    shape.window = 0;
    const uint64_t whole = cache_bytes();
    shape.window = 1024;
    EXPECT_LE(4 * cache_bytes(), whole);
  }
}

// With little memory, windows leave space for a longer automatic context.
TEST_F(MemoryFit, windows_make_the_automatic_context_longer) {
  PaperShape shape = {"27b", 62, 5376, 21504, 32, 16, 128, 262144};
  options_.sequence_count = 1;
  const auto context = [&] {
    return sized(make_model(shape), machine(1, {.gib_2mib = 26}, kGiB), {kGiB}).context_tokens;
  };
  const size_t whole = context();
  ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
  shape.window = 1024;
  EXPECT_GE(context(), 3 * whole);
}

TEST_F(MemoryFit, a_draft_model_and_its_cache_find_space_beside_the_model) {
  const Model model = make_model(k8b);
  const Model draft = make_model(kHalfB);
  for (const int nodes : {1, 2}) {
    for (const Pools& pools : {Pools{}, Pools{.gib_2mib = 12}}) {
      options_.rank_count = static_cast<uint32_t>(nodes);
      const Topology topology = machine(nodes, pools, 30 * kGiB);
      const MemoryLimits limits{.available_bytes = nodes * 30 * kGiB};
      draft_ = nullptr;
      const ModelLayout alone = sized(model, topology, limits);
      draft_ = &draft;
      const ModelLayout both = sized(model, topology, limits);
      ASSERT_TRUE(both.draft.has_value());
      ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
      EXPECT_LT(both.plan_options.kv_pages, alone.plan_options.kv_pages);
      EXPECT_GT(both.plan_options.kv_pages, alone.plan_options.kv_pages / 3);
      EXPECT_EQ(both.draft->plan_options.kv_pages, both.plan_options.kv_pages + 64)
          << "the model's pages, and one for each sequence";
      ASSERT_EQ(both.draft->sizes.size(), both.places.size());
      for (const RankSizes& sizes : both.draft->sizes) EXPECT_GT(sizes.weight_bytes, 0U);
    }
  }
}

TEST_F(MemoryFit, a_refusal_says_what_a_draft_model_takes) {
  const Model model = make_model(kHalfB);
  const Model draft = make_model(k8b);
  draft_ = &draft;
  sized(model, machine(1, {}, 4 * kGiB), {.available_bytes = 4 * kGiB});
  ASSERT_FALSE(sized_.has_value());
  EXPECT_THAT(sized_.error().message, HasSubstr("MiB for the draft model"));
}

TEST_F(MemoryFit, simulated_ranks_share_a_pool) {
  const Model model = make_model(k8b);
  for (const uint32_t ranks : {2U, 3U}) {
    for (const uint64_t gib : {8U, 24U, 56U}) {
      options_.rank_count = ranks;
      const Topology topology = machine(1, {.gib_2mib = gib}, 6 * kGiB);
      const ModelLayout layout = sized(model, topology, {6 * kGiB});
      ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
      EXPECT_GT(total_bytes(layout), gib * kGiB - gib * kGiB / 16);
    }
  }
}

TEST_F(MemoryFit, an_automatic_context_fills_pools_of_1_gib_pages) {
  constexpr uint64_t kFree = 2 * kGiB;
  for (const PaperShape& shape : {k8b, k1b}) {
    const Model model = make_model(shape);
    for (const int nodes : {1, 2}) {
      for (uint64_t gib = 8; gib <= 64; gib += 7) {
        SCOPED_TRACE(shape.name + ", nodes " + std::to_string(nodes) + ", pool " +
                     std::to_string(gib) + " GiB");
        options_.rank_count = static_cast<uint32_t>(nodes);
        const Topology topology = machine(nodes, {.gib_2mib = 6, .gib_1gib = gib}, kFree);
        const ModelLayout layout = sized(model, topology, {kFree * static_cast<uint64_t>(nodes)});
        ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
        EXPECT_GT(layout.sizes[0].kv_bytes, (gib - 1) * kGiB);
      }
    }
  }
}

TEST_F(MemoryFit, a_limit_on_huge_pages_bounds_the_context_as_a_smaller_pool_would) {
  const Model model = make_model(k8b);
  MemoryLimits limits{.available_bytes = 8 * kGiB};
  limits.pools.left_2mib_bytes = 16 * kGiB;
  const Topology topology = machine(1, {.gib_2mib = 64}, 100 * kGiB);
  const ModelLayout limited = sized(model, topology, limits);
  ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
  const ModelLayout small = sized(model, machine(1, {.gib_2mib = 16}, 100 * kGiB), {8 * kGiB});
  ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
  EXPECT_EQ(limited.plan_options.kv_pages, small.plan_options.kv_pages);
  Machine simulated;
  simulated.topology = topology;
  simulated.memory = limits;
  EXPECT_EQ(takeable_bytes(simulated, 0), 24 * kGiB);
}

TEST_F(MemoryFit, a_refusal_names_the_arena_that_no_kind_of_memory_holds) {
  const Model model = make_model(k8b);
  options_.context_tokens = 65536;
  options_.kv_pages = 1024;  // 8 GiB
  (void)sized(model, machine(1, {.gib_2mib = 12}, 3 * kGiB), {3 * kGiB});
  ASSERT_FALSE(sized_.has_value()) << "15 GiB are enough for all of it, but not for the cache";
  EXPECT_THAT(sized_.error().message, HasSubstr("8192 MiB for the KV cache must lie together"));
  EXPECT_THAT(sized_.error().message, HasSubstr("other memory 3008 MiB"));
  (void)sized(model, machine(1, {}, 3 * kGiB), {3 * kGiB});
  ASSERT_FALSE(sized_.has_value());
  EXPECT_THAT(sized_.error().message, HasSubstr("for weights find 3008 MiB left"));
}

}  // namespace
}  // namespace lockstep
