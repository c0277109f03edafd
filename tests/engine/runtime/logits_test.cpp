// The engine's logits against those that Hugging Face transformers computes for the same weights.
// The fixtures are made by scripts/models/make_logits_fixtures.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

const std::string kLogitsFolder = source_dir() + "/tests/fixtures/logits/";

nlohmann::json read_index() {
  std::ifstream file(kLogitsFolder + "index.json");
  return nlohmann::json::parse(file).at("models");
}

// Both engines compute in f32 in different orders. A logit is a sum of some hundred terms after
// some dozens of such sums; 2e-5 of the logits' spread is about 100 roundings of one part in 2^24
// each.
constexpr double kTolerance = 2e-5;
// With tiles activations are rounded to bf16 (but for F32 weights), each by up to one part in 2^9:
// in these models of random weights that moves a logit by up to 6 % of the spread.
constexpr double kTilesTolerance = 0.1;

void compare(LoadedModel& loaded, const nlohmann::json& sequence, double spread, double tolerance) {
  const auto tokens = sequence.at("tokens").get<std::vector<TokenId>>();
  const auto first_row = sequence.at("first_row").get<size_t>();
  const auto expected = read_floats(kLogitsFolder + sequence.at("logits").get<std::string>());
  const auto rows = loaded.compute_alone(tokens, 128);
  const size_t vocabulary = rows[0].size();
  ASSERT_EQ(expected.size(), sequence.at("row_count").get<size_t>() * vocabulary);
  double worst = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    const float logit = rows[first_row + index / vocabulary][index % vocabulary];
    ASSERT_TRUE(std::isfinite(logit));
    worst = std::max(worst, std::abs(static_cast<double>(logit) - expected[index]));
  }
  EXPECT_LT(worst, tolerance * spread) << tokens.size() << " tokens";
}

TEST(Logits, are_those_of_transformers_for_every_architecture_and_instruction_set) {
  for (const auto& model : read_index()) {
    for (const KernelTable* table : supported_kernel_tables()) {
      for (const size_t workers : {1U, 2U}) {
        const auto name = model.at("name").get<std::string>();
        SCOPED_TRACE(name + " " + std::string(table->name));
        const bool rounds = table->has_tiles && !name.ends_with("f32");
        LoadedModel loaded(kLogitsFolder + model.at("file").get<std::string>(),
                           {.kernels = table, .workers = workers});
        for (const auto& sequence : model.at("sequences")) {
          compare(loaded, sequence, model.at("spread").get<double>(),
                  rounds ? kTilesTolerance : kTolerance);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
