// Layers in groups by their windows, the pages that sequences take, and where a page's parts lie.
#include "engine/graph/kv_layout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

struct Layer {
  size_t window = 0;
  size_t heads = 2;
  size_t dimension = 16;
};

// Attention alone: what else a decoder has is of no matter to its cache.
Graph graph_of(const std::vector<Layer>& layers) {
  constexpr size_t kColumns = 64;
  Graph graph;
  ValueId x = graph.embed(graph.add_matrix("embedding", Format::kF32, 100, kColumns));
  for (size_t index = 0; index < layers.size(); ++index) {
    const Layer& layer = layers[index];
    const size_t columns = layer.heads * layer.dimension;
    const auto product = [&](const std::string& name, ValueId input, size_t rows) {
      return graph.matmul(input, graph.add_matrix(name + std::to_string(index), Format::kF32, rows,
                                                  graph.columns(input)));
    };
    const ValueId q = product("q", x, columns);
    const ValueId k = product("k", x, columns);
    const ValueId v = product("v", x, columns);
    const ValueId attended = graph.attention(index, q, k, v, layer.heads, layer.heads,
                                             {.scale = 1, .window = layer.window});
    x = graph.add(x, product("o", attended, kColumns));
  }
  graph.set_logits(
      graph.matmul(graph.select_rows(x), graph.add_matrix("output", Format::kF32, 100, kColumns)));
  return graph;
}

std::vector<Layer> repeated(size_t count, size_t period, size_t window) {
  std::vector<Layer> layers(count);
  for (size_t index = 0; index < count; ++index) {
    if ((index + 1) % period != 0) layers[index].window = window;
  }
  return layers;
}

KvLayout layout_of(const std::vector<Layer>& layers, size_t pages) {
  const Graph graph = graph_of(layers);
  const std::vector<double> alone = {1};
  const Split split = split_graph(graph, alone, Strategy::kGather).value();
  return place_kv(graph, split, 0, KvFormat::kF16, pages);
}

TEST(AttentionWindow, counts_the_pages_that_a_pass_reads_and_writes) {
  const AttentionWindow all;
  EXPECT_EQ(all.most_pages(1000, 512, 64), 16U);
  const AttentionWindow window{.tokens = 100};
  EXPECT_EQ(window.first_seen(99), 0U);
  EXPECT_EQ(window.first_seen(100), 1U);
  EXPECT_EQ(window.most_pages(64, 8, 64), 1U);
  EXPECT_EQ((AttentionWindow{.section = 100}.first_seen(199)), 100U);
  EXPECT_EQ((AttentionWindow{.section = 100}.first_seen(200)), 200U);
  // By trying: from the first that a pass's first token sees to its last token.
  const std::vector<AttentionWindow> some = {window, {0, 100}, {130, 70}};
  for (const AttentionWindow& one : some) {
    for (const size_t pass : {1U, 8U, 64U, 100U}) {
      size_t most = 0;
      for (size_t begin = 0; begin + pass <= 1000; ++begin) {
        most = std::max(most, (begin + pass - 1) / 64 - one.first_seen(begin) / 64 + 1);
      }
      EXPECT_GE(one.most_pages(1000, pass, 64), most) << pass;
      EXPECT_LE(one.most_pages(1000, pass, 64), most + 1) << pass;
    }
  }
}

TEST(KvGroups, of_one_window_are_one) {
  for (const size_t window : {0U, 100U}) {
    const auto groups = group_kv_layers(graph_of(repeated(5, 6, window)));
    ASSERT_EQ(groups.size(), 1U);
    EXPECT_EQ(groups[0].window.tokens, window);
    EXPECT_EQ(groups[0].layers, (std::vector<size_t>{0, 1, 2, 3, 4}));
  }
}

// As Gemma 3's: 62 layers, of which each sixth sees all tokens.
TEST(KvGroups, let_windows_take_little_of_a_long_context) {
  const std::vector<Layer> layers = repeated(62, 6, 1024);
  const auto groups = group_kv_layers(graph_of(layers));
  size_t layer_count = 0;
  size_t largest = 0;
  for (const KvGroup& group : groups) {
    layer_count += group.layers.size();
    largest = std::max(largest, group.layers.size());
    for (const size_t layer : group.layers) EXPECT_EQ(layers[layer].window, group.window.tokens);
  }
  EXPECT_EQ(layer_count, 62U);
  const KvPageCount count(graph_of(layers), 512);
  const size_t context = 131072;
  EXPECT_LE(count.of_sequence(context) * largest * 4, context / kPageTokens * 62);
}

// Pages of a window that is hardly shorter than the context would take more than they give back.
TEST(KvGroups, are_one_where_windows_save_nothing) {
  EXPECT_EQ(group_kv_layers(graph_of(repeated(6, 2, 32000))).size(), 1U);
}

TEST(KvPageCount, is_the_inverse_of_the_tokens_within) {
  const KvPageCount count(graph_of(repeated(12, 6, 100)), 32);
  for (size_t pages = 1; pages < 60; ++pages) {
    const size_t tokens = count.tokens_within(pages);
    EXPECT_LE(tokens == 0 ? 0 : count.of_sequence(tokens), pages);
    EXPECT_GT(count.of_sequence(tokens + 1), pages);
  }
}

// Every layer's heads lie in parts of their pages that no other layer of the group has.
void expect_apart(const std::vector<Layer>& layers, const KvLayout& kv) {
  for (size_t group = 0; group < kv.group_count(); ++group) {
    std::vector<int> taken(kv.size_bytes(), 0);
    for (size_t index = 0; index < layers.size(); ++index) {
      const KvLayer& layer = kv.layers[index];
      EXPECT_EQ(layer.head_count, layers[index].heads);
      if (layer.group != group) continue;
      const size_t bytes = key_block_bytes(kv.format.keys, layer.key_dimension) +
                           value_block_bytes(kv.format.values, layer.value_dimension);
      for (size_t head = 0; head < layer.head_count; ++head) {
        for (size_t page = 0; page < kv.page_count; ++page) {
          const size_t begin = kv.keys(index, head).bytes + page * layer.page_stride_bytes;
          ASSERT_LE(begin + bytes, kv.size_bytes());
          for (size_t byte = begin; byte < begin + bytes; ++byte) {
            ASSERT_EQ(taken[byte]++, 0) << "layer " << index << " head " << head;
            // In a part of this page.
            ASSERT_EQ(byte / kv.part_bytes % kv.page_count, page);
          }
        }
      }
    }
  }
}

// One layer of latent attention with the sizes of DeepSeek's models.
Graph latent_graph() {
  constexpr size_t kHeads = 16;
  Graph graph;
  const ValueId x = graph.embed(graph.add_matrix("embedding", Format::kF32, 100, 64));
  const ValueId q = graph.matmul(x, graph.add_matrix("q", Format::kF32, kHeads * 576, 64));
  const ValueId k = graph.matmul(x, graph.add_matrix("k", Format::kF32, 576, 64));
  const ValueId attended = graph.latent_attention(0, q, k, kHeads, 1, 512, {.scale = 1});
  const ValueId output =
      graph.matmul(attended, graph.add_matrix("o", Format::kF32, 64, kHeads * 512));
  graph.set_logits(graph.matmul(graph.select_rows(graph.add(x, output)),
                                graph.add_matrix("output", Format::kF32, 100, 64)));
  return graph;
}

// Latents are stored once, whatever the number of heads and ranks: every rank has all of them.
TEST(KvLayout, stores_latents_once_on_every_rank) {
  const Graph graph = latent_graph();
  for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}, {2, 1, 1}}) {
    const Split split = split_graph(graph, shares, Strategy::kGather).value();
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      const KvLayout kv = place_kv(graph, split, rank, KvFormat::kF16, 10);
      EXPECT_EQ(kv.layers.front().head_count, 1U);
      EXPECT_EQ(kv.size_bytes(), 10 * kPageTokens * 576 * sizeof(uint16_t));
    }
  }
}

TEST(KvLayout, keeps_layers_apart) {
  const std::vector<std::vector<Layer>> models = {
      repeated(4, 6, 0),
      repeated(12, 6, 100),
      {{0, 2, 16}, {100, 4, 16}, {100, 4, 16}, {0, 2, 32}},
      {{0, 1, 16}, {0, 3, 16}, {0, 2, 32}},
  };
  for (const auto& layers : models) expect_apart(layers, layout_of(layers, 3));
}

}  // namespace
}  // namespace lockstep
