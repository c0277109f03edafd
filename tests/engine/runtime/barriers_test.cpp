// How often the workers of a rank meet in a pass: a design figure.
#include <gtest/gtest.h>

#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

// Clearing pages, rotary angles, the embedding, its norm, and the logits.
constexpr size_t kMeetingsBesideLayers = 5;

size_t meetings_of(LoadedModel& model, std::span<const TokenId> tokens,
                   LoadedModel::Sequence& sequence) {
  WorkerCounters& counters = model.ranks()[0].counters(0);
  const uint64_t before = counters.barriers.value();
  model.compute(std::vector<LoadedModel::Piece>{{sequence, tokens}});
  return counters.barriers.value() - before;
}

TEST(Barriers, are_five_per_layer_for_a_generated_token_and_one_more_for_a_prompt) {
  for (const Format format : {Format::kF32, Format::kF16, Format::kQ8_0, Format::kQ4_K}) {
    const RandomModel file(format, format, /*seed=*/3);
    LoadedModel model(file.path(), {.workers = 2});
    const size_t layers = model.plan().kv.layers.size();
    auto sequence = model.new_sequence(40);
    const auto tokens = some_tokens(33, 1);
    EXPECT_EQ(meetings_of(model, tokens, sequence), 6 * layers + kMeetingsBesideLayers);
    for (size_t token = 0; token < 4; ++token) {
      EXPECT_EQ(meetings_of(model, std::span(tokens).subspan(token, 1), sequence),
                5 * layers + kMeetingsBesideLayers);
    }
  }
}

// Two more: after the scores, and after the experts are chosen; among many tokens another one.
TEST(Barriers, are_seven_per_layer_of_a_mixture_for_a_generated_token_and_two_more_for_a_prompt) {
  const RandomModel file(Format::kQ8_0, Format::kQ8_0, /*seed=*/3, {.count = 4, .used = 2});
  LoadedModel model(file.path(), {.workers = 2});
  const size_t layers = model.plan().kv.layers.size();
  auto sequence = model.new_sequence(40);
  const auto tokens = some_tokens(33, 1);
  EXPECT_EQ(meetings_of(model, tokens, sequence), 9 * layers + kMeetingsBesideLayers);
  EXPECT_EQ(meetings_of(model, std::span(tokens).first(1), sequence),
            7 * layers + kMeetingsBesideLayers);
}

// The tiny file has attention between two delta nets; in its place a delta net has four steps: the
// products, the convolutions, the heads and the output. Attention whose queries have gates behind
// them has three more than attention without: two copies and the gate. One more of the pass is
// behind the copies of states.
TEST(Barriers, are_six_per_layer_of_a_delta_net_for_a_generated_token) {
  LoadedModel model(source_dir() + "/tests/fixtures/families/qwen35.gguf", {.workers = 2});
  auto sequence = model.new_sequence(40);
  const auto tokens = some_tokens(33, 1);
  const size_t prompted = meetings_of(model, tokens, sequence);
  EXPECT_EQ(prompted, 2 * 6 + (6 + 3) + 1 + kMeetingsBesideLayers);
  EXPECT_EQ(meetings_of(model, std::span(tokens).first(1), sequence),
            2 * 6 + (5 + 3) + 1 + kMeetingsBesideLayers);
}

}  // namespace
}  // namespace lockstep
