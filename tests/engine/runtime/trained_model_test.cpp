// A real trained model with greedy continuations and log-probabilities from an independent engine.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/sampler.h"
#include "tests/engine/runtime/loaded_model.h"

namespace lockstep {
namespace {

const std::string kModel = std::string(LOCKSTEP_TEST_DATA) + "/stories260K.gguf";
const std::string kExpected = std::string(LOCKSTEP_TEST_DATA) + "/stories260K.expected.json";

class TrainedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel)) GTEST_SKIP() << kModel << " is not here";
    std::ifstream file(kExpected);
    cases_ = nlohmann::json::parse(file);
    ASSERT_EQ(cases_.size(), 6U);
  }

  // Greedy, token by token, as the expected file was made.
  static void check_case(LoadedModel& loaded, const nlohmann::json& expected, double tolerance) {
    std::vector<TokenId> tokens = expected.at("prompt_ids").get<std::vector<TokenId>>();
    const auto ids = expected.at("ids").get<std::vector<TokenId>>();
    LoadedModel::Sequence sequence = loaded.new_sequence(tokens.size() + ids.size());
    std::vector<TokenId> next = tokens;
    for (size_t step = 0; step < ids.size(); ++step) {
      const std::vector<LoadedModel::Piece> pieces = {{sequence, next}};
      const std::vector<float> logits = loaded.compute(pieces).back();
      const nlohmann::json& wanted = expected.at("logprobs").at(step);
      const LogprobResult result = compute_logprobs(logits, ids[step], 1);
      ASSERT_EQ(result.top.at(0).token, ids[step]) << "step " << step;
      ASSERT_NEAR(result.logprob, wanted.at("logprob").get<double>(), tolerance) << "step " << step;
      next = {ids[step]};
    }
  }

  nlohmann::json cases_;
};

TEST_F(TrainedModel, greedy_continuations_and_their_logprobs_are_the_expected_ones) {
  for (const KernelTable* table : supported_kernel_tables()) {
    for (const size_t workers : {1U, 2U}) {
      SCOPED_TRACE(std::string(table->name) + ", " + std::to_string(workers) + " workers");
      LoadedModel loaded(kModel, {.kernels = table, .workers = workers});
      for (const auto& expected : cases_) check_case(loaded, expected, 1e-4);
    }
  }
}

TEST_F(TrainedModel, a_narrower_cache_changes_logprobs_by_less_than_a_hundredth) {
  for (const KernelTable* table : supported_kernel_tables()) {
    SCOPED_TRACE(table->name);
    LoadedModel loaded(kModel, {.kernels = table, .kv_format = KvFormat::kF16});
    for (const auto& expected : cases_) check_case(loaded, expected, 1e-2);
  }
}

}  // namespace
}  // namespace lockstep
