// Prompts whose products are computed for whole steps of tokens have the same bits, and nothing
// beside them changes: what fills a step up lies among the rank's own memory.
#include <gtest/gtest.h>

#include <vector>

#include "tests/emulators/gpu/cuda/cublas_lt_offers.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

constexpr size_t kBatchTokens = 32;

LogitRows in_passes(LoadedModel& loaded) {
  const auto tokens = some_tokens(kBatchTokens, 3);
  LogitRows rows = loaded.compute_alone(std::span(tokens).first(5), 3);
  // The prompt of one fills the pass up behind a generated token of another.
  LoadedModel::Sequence first = loaded.new_sequence(8);
  const std::vector<LoadedModel::Piece> prompt = {{first, std::span(tokens).first(4)}};
  loaded.compute(prompt);
  LoadedModel::Sequence second = loaded.new_sequence(kBatchTokens);
  const std::vector<LoadedModel::Piece> both = {{first, std::span(tokens).subspan(4, 1)},
                                                {second, std::span(tokens).first(31)}};
  const LogitRows more = loaded.compute(both, 1);
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

TEST(PromptSteps, the_bits_are_those_of_any_number_of_tokens) {
  const RandomModel model(Format::kQ8_0, Format::kQ4_0, /*seed=*/46);
  const LoadedModelOptions options = {
      .kv_format = KvFormat::kF16, .batch_tokens = kBatchTokens, .gpus = &test_gpus()};
  LoadedModel any(model.path(), options);
  const LogitRows wanted = in_passes(any);
  ptx::offered_kernels() = {{.column_step = 16}};
  LoadedModel stepped(model.path(), options);
  expect_same_bits(wanted, in_passes(stepped));
  ptx::offered_kernels() = {ptx::OfferedKernel()};
}

}  // namespace
}  // namespace lockstep
