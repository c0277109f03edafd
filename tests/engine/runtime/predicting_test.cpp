// Blocks that predict further tokens, as models of their own: their logits and rows against those
// of llama.cpp for the same files, and against float64; and their bits however the work is cut. The
// fixtures are made by scripts/models/make_predicting_fixtures.py.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/kernels/kernel_choice.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/predicting_model.h"
#include "tests/engine/runtime/quantized_copy.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/paths.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

const std::string kFolder = source_dir() + "/tests/fixtures/predicting/";

// In units of the spread of logits or rows. All engines compute in f32 in different orders.
constexpr double kTolerance = 5e-5;

struct Fixture {
  std::string name;
  std::string path;
  size_t columns = 0;
  std::vector<TokenId> tokens;
  std::vector<TokenId> steps;  // tokens behind them
  std::vector<float> given;    // llama.cpp's rows of the model, by token
  std::vector<float> own;      // and of the block, by token and step
  std::vector<float> logits;   // likewise
};

std::vector<Fixture> read_fixtures() {
  std::ifstream file(kFolder + "index.json");
  std::vector<Fixture> fixtures;
  const auto index = nlohmann::json::parse(file);
  for (const auto& model : index.at("models")) {
    const std::string name = model.at("name");
    fixtures.push_back({.name = name,
                        .path = kFolder + model.at("file").get<std::string>(),
                        .columns = model.at("columns"),
                        .tokens = model.at("tokens"),
                        .steps = model.at("steps"),
                        .given = read_floats(kFolder + name + "-given.f32"),
                        .own = read_floats(kFolder + name + "-own.f32"),
                        .logits = read_floats(kFolder + name + "-logits.f32")});
  }
  EXPECT_EQ(fixtures.size(), 9U);
  return fixtures;
}

// Rows of the model as the block is given them: each with the token behind, the first one zeros.
std::vector<float> rows_before(std::span<const float> rows, size_t columns) {
  std::vector<float> given(columns);
  given.insert(given.end(), rows.begin(), rows.end() - static_cast<ptrdiff_t>(columns));
  return given;
}

double spread_of(std::span<const float> values) {
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const auto count = static_cast<double>(values.size());
  return std::sqrt(squares / count - sum / count * (sum / count));
}

// The largest, in units of what is expected's spread.
double difference(const LogitRows& rows, std::span<const float> expected) {
  const size_t columns = rows[0].size();
  EXPECT_EQ(rows.size() * columns, expected.size());
  double worst = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    const float value = rows[index / columns][index % columns];
    EXPECT_TRUE(std::isfinite(value));
    worst = std::max(worst, std::abs(double{value} - double{expected[index]}));
  }
  return worst / spread_of(expected);
}

// Whether it gives rows of its own: a layer norm at its end leaves none.
bool gives_rows(const LoadedModel& model) {
  return model.plan().hidden.width > 0;
}

LogitRows hidden_rows(LoadedModel& model, size_t count, HiddenForm form) {
  LogitRows rows;
  if (!gives_rows(model)) return rows;
  for (size_t token = 0; token < count; ++token) rows.push_back(model.hidden_row(token, form));
  return rows;
}

TokenId likeliest(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

struct Prediction {
  LogitRows logits;
  LogitRows own;
};

// The block's logits and rows of a text, and of steps behind it, of which each reads the block's
// own row of the token before; of a block that gives none one step.
Prediction predict(LoadedModel& block, const Fixture& fixture, std::span<const float> rows) {
  const HiddenForm form = block.model().given_form;
  auto sequence = block.new_sequence(fixture.tokens.size() + fixture.steps.size());
  const std::vector<float> given = rows_before(rows, fixture.columns);
  Prediction found;
  found.logits = block.compute(std::vector<LoadedModel::Piece>{{sequence, fixture.tokens, given}});
  found.own = hidden_rows(block, fixture.tokens.size(), form);
  std::vector<float> before(rows.end() - static_cast<ptrdiff_t>(fixture.columns), rows.end());
  for (const TokenId& step : fixture.steps) {
    auto logits =
        block.compute(std::vector<LoadedModel::Piece>{{sequence, std::span(&step, 1), before}}, 1);
    found.logits.push_back(std::move(logits.front()));
    if (!gives_rows(block)) break;
    before = block.hidden_row(0, form);
    found.own.push_back(before);
  }
  block.give_back(sequence);
  return found;
}

TEST(PredictingBlocks, have_the_rows_and_logits_of_llama_cpp_on_every_instruction_set) {
  for (const Fixture& fixture : read_fixtures()) {
    const HiddenForm form = predicting_block(fixture.path).given_form;
    for (const KernelTable* table : supported_kernel_tables()) {
      SCOPED_TRACE(fixture.name + " " + std::string(table->name));
      LoadedModel model(fixture.path, {.kernels = table});
      model.compute_alone(fixture.tokens, 128);
      const LogitRows rows = hidden_rows(model, fixture.tokens.size(), form);
      EXPECT_LT(difference(rows, fixture.given), kTolerance);
      LoadedModel block(fixture.path, predicting_block(fixture.path), {.kernels = table});
      const Prediction found = predict(block, fixture, fixture.given);
      const size_t count = found.logits.size() * block.plan().vocabulary_size;
      EXPECT_LT(difference(found.logits, std::span(fixture.logits).first(count)), kTolerance);
      if (gives_rows(block)) {
        EXPECT_LT(difference(found.own, fixture.own), kTolerance);
      }
      // The steps are what the block itself predicts.
      const size_t steps = found.logits.size() - fixture.tokens.size();
      EXPECT_EQ(steps, gives_rows(block) ? fixture.steps.size() : 1);
      for (size_t step = 1; step < steps; ++step) {
        EXPECT_EQ(likeliest(found.logits[fixture.tokens.size() + step - 1]), fixture.steps[step]);
      }
    }
  }
}

// The rows matter, and so does which token a row is given with.
TEST(PredictingBlocks, read_the_row_of_the_token_before) {
  for (const Fixture& fixture : read_fixtures()) {
    SCOPED_TRACE(fixture.name);
    LoadedModel block(fixture.path, predicting_block(fixture.path), {});
    const size_t count = fixture.tokens.size() * block.plan().vocabulary_size;
    const auto expected = std::span(fixture.logits).first(count);
    EXPECT_GT(difference(block.compute_alone(fixture.tokens, 128, fixture.given), expected), 0.1);
    const std::vector<float> zeros(fixture.given.size());
    EXPECT_GT(difference(block.compute_alone(fixture.tokens, 128, zeros), expected), 0.1);
  }
}

void expect_what_float64_computes(const std::string& path, const Fixture& fixture) {
  const std::vector<float> given = rows_before(fixture.given, fixture.columns);
  const ReferenceModel reference(path, predicting_block(path), fixture.tokens, given);
  for (const KernelTable* table : supported_kernel_tables()) {
    for (const bool generated : {false, true}) {
      SCOPED_TRACE(fixture.name + " " + std::string(table->name));
      LoadedModel block(path, predicting_block(path), {.kernels = table, .generated = generated});
      const Roundings roundings = roundings_of(*table, Profile::kFast, KvFormat::kF32, generated);
      expect_near(block.compute_alone(fixture.tokens, 128, given), reference, roundings);
      if (!gives_rows(block)) continue;
      const LogitRows rows = hidden_rows(block, fixture.tokens.size(), HiddenForm::kNormed);
      EXPECT_LE(worst_difference(rows, reference.hidden()), reference.hidden_bound(roundings));
    }
  }
}

TEST(PredictingBlocks, are_what_float64_computes_on_every_instruction_set) {
  const test::Folder folder;
  const std::string copy = folder / "copy.gguf";
  for (const Fixture& fixture : read_fixtures()) {
    expect_what_float64_computes(fixture.path, fixture);
    write_quantized_copy(fixture.path, copy);
    expect_what_float64_computes(copy, fixture);
  }
}

// As a prompt, in chunks, token by token, and among neighbours.
void expect_in_any_pieces(LoadedModel& block, const Prediction& expected, const Fixture& fixture) {
  const std::span<const TokenId> tokens = fixture.tokens;
  const std::vector<float> given = rows_before(fixture.given, fixture.columns);
  const LogitRows logits(expected.logits.begin(),
                         expected.logits.begin() + static_cast<ptrdiff_t>(tokens.size()));
  for (const size_t chunk : {128U, 7U, 1U}) {
    expect_same_bits(logits, block.compute_alone(tokens, chunk, given));
  }
  const auto others = some_tokens(33, 4);
  auto before = block.new_sequence(others.size());
  auto mine = block.new_sequence(tokens.size());
  std::vector<LoadedModel::Piece> pieces = {{before, others}, {mine, tokens, given}};
  const LogitRows all = block.compute(pieces);
  expect_same_bits(logits, LogitRows(all.begin() + 33, all.end()));
  if (gives_rows(block)) {
    const std::vector<float> own = block.hidden_row(33 + 5, block.model().given_form);
    expect_same_bits({expected.own[5]}, {own});
  }
  const Prediction again = predict(block, fixture, fixture.given);
  expect_same_bits(expected.logits, again.logits);
  expect_same_bits(expected.own, again.own);
}

TEST(PredictingBlocks, have_the_same_bits_for_any_ranks_shares_workers_pieces_and_fusions) {
  const test::Folder folder;
  const std::string copy = folder / "copy.gguf";
  const std::vector<std::vector<double>> splits = {{1}, {1, 1}, {3, 1}, {2, 1, 1}, {1, 1, 1, 1}};
  size_t turn = 0;
  for (const Fixture& fixture : read_fixtures()) {
    write_quantized_copy(fixture.path, copy);
    for (const std::string& path : {fixture.path, copy}) {
      LoadedModel alone(path, predicting_block(path), {});
      const Prediction expected = predict(alone, fixture, fixture.given);
      for (const std::vector<double>& shares : splits) {
        SCOPED_TRACE(fmt::format("{}, shares {}", fixture.name, fmt::join(shares, ":")));
        LoadedModelOptions options{.workers = 1 + turn % 3, .shares = shares};
        if (turn++ % 2 == 1) options.without_fusion.add_all();
        LoadedModel block(path, predicting_block(path), options);
        expect_in_any_pieces(block, expected, fixture);
      }
    }
  }
}

// The model's tokens, each the likeliest behind the one before.
std::vector<TokenId> greedy(LoadedModel& model, TokenId first, size_t count) {
  auto sequence = model.new_sequence(count);
  std::vector<TokenId> tokens = {first};
  while (tokens.size() < count) {
    const TokenId last = tokens.back();
    tokens.push_back(likeliest(
        model.compute(std::vector<LoadedModel::Piece>{{sequence, std::span(&last, 1)}}).front()));
  }
  model.give_back(sequence);
  return tokens;
}

TEST(PredictingBlocks, of_a_foreseeing_copy_predict_what_the_model_says) {
  const test::Folder folder;
  const std::string copy = folder / "copy.gguf";
  for (const Fixture& fixture : read_fixtures()) {
    // Blocks with tables of their own see other embeddings or other logits.
    const GgufFile file = GgufFile::open(fixture.path).value();
    const bool has_own = std::ranges::any_of(file.tensors(), [](const GgufTensor& tensor) {
      return tensor.name.contains("nextn.embed_tokens") ||
             tensor.name.contains("nextn.shared_head_head");
    });
    if (has_own) continue;
    SCOPED_TRACE(fixture.name);
    write_foreseeing_copy(fixture.path, copy);
    LoadedModel model(copy, {});
    LoadedModel block(copy, predicting_block(copy), {});
    for (const TokenId first : {3, 77}) {
      const std::vector<TokenId> tokens = greedy(model, first, 12);
      const LogitRows predicted = block.compute_alone(tokens, 128);
      for (size_t token = 0; token + 1 < tokens.size(); ++token) {
        EXPECT_EQ(likeliest(predicted[token]), tokens[token + 1]);
      }
    }
  }
}

std::string error_of(const std::string& path, size_t block) {
  const GgufFile file = GgufFile::open(path).value();
  const auto model = build_predicting_block({.file = file}, block);
  return model ? "" : model.error().message;
}

TEST(PredictingBlocks, are_counted_and_those_that_are_not_there_refused) {
  const std::string with = kFolder + "qwen3next.gguf";
  const std::string families = source_dir() + "/tests/fixtures/families/";
  const GgufFile file = GgufFile::open(with).value();
  EXPECT_EQ(count_predicting_blocks(file).value(), 1U);
  EXPECT_EQ(error_of(with, 0), "");
  EXPECT_EQ(error_of(with, 1),
            "block 1 of those that predict further tokens is not there: the file has 1 (tensors "
            "blk.N.nextn.*)");
  EXPECT_EQ(error_of(families + "qwen3next.gguf", 0),
            "block 0 of those that predict further tokens is not there: the file has 0 (tensors "
            "blk.N.nextn.*)");
}

// The error for the file where one tensor has another name, as long as its own.
std::string error_with(const std::string& path, const std::string& name, const std::string& other) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const size_t at = bytes.find(name);
  EXPECT_NE(at, std::string::npos);
  bytes.replace(at, name.size(), other);
  const auto changed = GgufFile::parse(std::as_bytes(std::span(bytes)), "changed").value();
  const auto model = build_predicting_block({.file = changed}, 0);
  return model ? "" : model.error().message;
}

TEST(PredictingBlocks, with_tensors_that_are_missing_or_have_no_place_are_refused) {
  const std::string path = kFolder + "qwen3next.gguf";
  EXPECT_EQ(error_with(path, "blk.3.nextn.enorm.weight", "blk.3.nextn.xnorm.weight"),
            "tensor blk.3.nextn.enorm.weight is missing");
  EXPECT_EQ(error_with(path, "blk.3.attn_output.weight", "blk.3.attn_xutput.weight"),
            "tensor blk.3.attn_output.weight is missing");
  EXPECT_EQ(error_with(path, "nextn.shared_head_norm.", "nextn.shared_head_xorm."),
            "tensor \"blk.3.nextn.shared_head_xorm.weight\" has no place in a block that predicts "
            "further tokens as it is known here");
}

}  // namespace
}  // namespace lockstep
