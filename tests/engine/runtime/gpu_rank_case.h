// Models on ranks that are GPUs: what their tests share.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/engine/runtime/test_gpus.h"
#include "tests/paths.h"

namespace lockstep {

inline const std::string kFolder = source_dir() + "/tests/fixtures/logits/";

class OnTestGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string absence = no_test_gpus(); !absence.empty()) GTEST_SKIP() << absence;
  }
};

inline LoadedModelOptions on_gpu(KvFormat format = KvFormat::kF16) {
  return {.kv_format = format, .gpus = &test_gpus()};
}

// Roundings of GPUs and of processors beside them, which use the row that tests give them, under
// `fast`.
inline Roundings mixed_roundings(KvFormat format = KvFormat::kF16) {
  const KernelTable& table = *choose_kernel_table(kernel_row()).value();
  const Roundings processors = joined(roundings_of(table, Profile::kFast, format),
                                      roundings_of(table, Profile::kFast, format, true));
  return joined(gpu_roundings(format), processors);
}

inline LogitRows generate_after_prompt(LoadedModel& loaded, const std::vector<TokenId>& tokens,
                                       size_t prompted) {
  LoadedModel::Sequence sequence = loaded.new_sequence(tokens.size());
  const std::vector<LoadedModel::Piece> prompt = {{sequence, std::span(tokens).first(prompted)}};
  LogitRows rows = loaded.compute(prompt);
  for (size_t token = prompted; token < tokens.size(); ++token) {
    const std::vector<LoadedModel::Piece> one = {{sequence, std::span(tokens).subspan(token, 1)}};
    rows.push_back(loaded.compute(one, 1).front());
  }
  loaded.give_back(sequence);
  return rows;
}

}  // namespace lockstep
