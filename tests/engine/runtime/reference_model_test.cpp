// The reference in float64 against transformers.
#include "tests/engine/runtime/reference_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/paths.h"

namespace lockstep {
namespace {

const std::string kFolder = source_dir() + "/tests/fixtures/logits/";

LogitRows read_rows(const std::string& path, size_t columns) {
  std::ifstream file(path, std::ios::binary);
  LogitRows rows;
  std::vector<float> row(columns);
  while (file.read(reinterpret_cast<char*>(row.data()),
                   static_cast<std::streamsize>(columns * sizeof(float)))) {
    rows.push_back(row);
  }
  return rows;
}

// transformers computes in f32: sums of some hundred terms, some dozens one behind the other, are
// off by about 100 roundings of one part in 2^24.
TEST(ReferenceModel, is_what_transformers_computes) {
  std::ifstream file(kFolder + "index.json");
  for (const auto& model : nlohmann::json::parse(file).at("models")) {
    SCOPED_TRACE(model.at("name").get<std::string>());
    const auto& sequence = model.at("sequences").at(0);
    const ReferenceModel reference(kFolder + model.at("file").get<std::string>(),
                                   sequence.at("tokens").get<std::vector<TokenId>>());
    const auto begin = sequence.at("first_row").get<std::ptrdiff_t>();
    const ReferenceRows rows(reference.logits().begin() + begin, reference.logits().end());
    const LogitRows expected =
        read_rows(kFolder + sequence.at("logits").get<std::string>(), rows.front().size());
    EXPECT_LT(worst_difference(expected, rows),
              100 * std::ldexp(1.0, -24) * model.at("spread").get<double>());
  }
}

}  // namespace
}  // namespace lockstep
