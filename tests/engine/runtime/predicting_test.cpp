// Blocks that read a model's rows and predict further tokens, as models of their own: their logits
// and rows against those of llama.cpp for the same files, and against float64; and their bits
// however the work is cut. The fixtures are made by make_predicting_fixtures.py and
// make_eagle_fixtures.py in scripts/models.
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

const std::string kFixtures = source_dir() + "/tests/fixtures/";
const std::string kPredictingFolder = kFixtures + "predicting/";
const std::string kEagles = kFixtures + "eagle/";

// In units of the spread of logits or rows. All engines compute in f32 in different orders.
constexpr double kPredictedTolerance = 5e-5;

struct Fixture {
  std::string name;
  std::string path;
  std::string model;         // the file of the model, whose rows are read; may be the same
  size_t given_columns = 0;  // of the model's rows
  std::vector<TokenId> tokens;
  std::vector<TokenId> steps;  // tokens behind them
  std::vector<float> given;    // llama.cpp's rows of the model, by token
  std::vector<float> own;      // and of the block, by token and step
  std::vector<float> logits;   // likewise

  bool is_eagle() const { return path != model; }
};

void add_fixtures(const std::string& folder, std::vector<Fixture>& fixtures) {
  std::ifstream file(folder + "index.json");
  const auto index = nlohmann::json::parse(file);
  for (const auto& each : index.at("models")) {
    const std::string name = each.at("name");
    const std::string path = folder + each.at("file").get<std::string>();
    const bool is_eagle = each.contains("model");
    fixtures.push_back({.name = (is_eagle ? "eagle/" : "") + name,
                        .path = path,
                        .model = is_eagle ? kFixtures + each.at("model").get<std::string>() : path,
                        .given_columns = each.at(is_eagle ? "given_columns" : "columns"),
                        .tokens = each.at("tokens"),
                        .steps = each.at("steps"),
                        .given = read_floats(folder + name + "-given.f32"),
                        .own = read_floats(folder + name + "-own.f32"),
                        .logits = read_floats(folder + name + "-logits.f32")});
  }
}

std::vector<Fixture> read_fixtures() {
  std::vector<Fixture> fixtures;
  add_fixtures(kPredictingFolder, fixtures);
  EXPECT_EQ(fixtures.size(), 9U);
  add_fixtures(kEagles, fixtures);
  EXPECT_EQ(fixtures.size(), 9U + 5U);
  return fixtures;
}

BlockFile block_of(const Fixture& fixture) {
  return open_block(fixture.path, fixture.model);
}

LoadedModel loaded(const BlockFile& block, const LoadedModelOptions& options = {}) {
  return LoadedModel(block.file, block.model, options);
}

// A row as the block is given it: zeros beside it.
std::vector<float> placed(const Model& block, size_t begin, std::span<const float> row) {
  std::vector<float> given(block.graph.given_columns());
  std::ranges::copy(row, given.begin() + static_cast<ptrdiff_t>(begin));
  return given;
}

// Rows of the model as the block is given them: each with the token behind, the first one zeros.
std::vector<float> rows_before(const Model& block, std::span<const float> rows, size_t columns) {
  std::vector<float> given(block.graph.given_columns());
  for (size_t begin = 0; begin + columns < rows.size(); begin += columns) {
    const std::vector<float> row = placed(block, 0, rows.subspan(begin, columns));
    given.insert(given.end(), row.begin(), row.end());
  }
  return given;
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

// The rows of the model that the block reads.
LogitRows model_rows(LoadedModel& model, const Model& block, size_t count) {
  if (block.given.layers.empty()) return hidden_rows(model, count, block.given.form);
  LogitRows rows;
  for (size_t token = 0; token < count; ++token) rows.push_back(model.kept_row(token));
  return rows;
}

struct Prediction {
  LogitRows logits;
  LogitRows own;
};

// The token that the block finds likeliest.
TokenId predicted(const Model& block, const std::vector<float>& logits) {
  const TokenId found = likeliest(logits);
  return block.logit_tokens.empty() ? found : block.logit_tokens[static_cast<size_t>(found)];
}

// The block's logits and rows of a text, and of steps behind it, of which each reads the block's
// own row of the token before; of a block that gives none one step.
Prediction predict(LoadedModel& block, const Fixture& fixture, std::span<const float> rows) {
  const Model& model = block.model();
  auto sequence = block.new_sequence(fixture.tokens.size() + fixture.steps.size());
  const std::vector<float> given = rows_before(model, rows, fixture.given_columns);
  Prediction found;
  found.logits = block.compute(std::vector<LoadedModel::Piece>{{sequence, fixture.tokens, given}});
  found.own = hidden_rows(block, fixture.tokens.size(), model.given.form);
  std::vector<float> before = placed(model, 0, rows.last(fixture.given_columns));
  for (const TokenId& step : fixture.steps) {
    auto logits =
        block.compute(std::vector<LoadedModel::Piece>{{sequence, std::span(&step, 1), before}}, 1);
    found.logits.push_back(std::move(logits.front()));
    if (!gives_rows(block)) break;
    found.own.push_back(block.hidden_row(0, model.given.form));
    before = placed(model, model.given.own_begin, found.own.back());
  }
  block.give_back(sequence);
  return found;
}

TEST(PredictingBlocks, have_the_rows_and_logits_of_llama_cpp_on_every_instruction_set) {
  for (const Fixture& fixture : read_fixtures()) {
    const BlockFile opened = block_of(fixture);
    for (const KernelTable* table : supported_kernel_tables()) {
      SCOPED_TRACE(fixture.name + " " + std::string(table->name));
      LoadedModel model(fixture.model, model_for(fixture.model, opened.model), {.kernels = table});
      model.compute_alone(fixture.tokens, 128);
      const LogitRows rows = model_rows(model, opened.model, fixture.tokens.size());
      EXPECT_LT(difference(rows, fixture.given), kPredictedTolerance);
      LoadedModel block = loaded(opened, {.kernels = table});
      const Prediction found = predict(block, fixture, fixture.given);
      const size_t count = found.logits.size() * block.plan().vocabulary_size;
      EXPECT_LT(difference(found.logits, std::span(fixture.logits).first(count)),
                kPredictedTolerance);
      if (gives_rows(block)) {
        EXPECT_LT(difference(found.own, fixture.own), kPredictedTolerance);
      }
      // The steps are what the block itself predicts.
      const size_t steps = found.logits.size() - fixture.tokens.size();
      EXPECT_EQ(steps, gives_rows(block) ? fixture.steps.size() : 1);
      for (size_t step = 1; step < steps; ++step) {
        const auto& logits = found.logits[fixture.tokens.size() + step - 1];
        EXPECT_EQ(predicted(opened.model, logits), fixture.steps[step]);
      }
    }
  }
}

// The rows matter, and so does which token a row is given with.
TEST(PredictingBlocks, read_the_row_of_the_token_before) {
  for (const Fixture& fixture : read_fixtures()) {
    SCOPED_TRACE(fixture.name);
    LoadedModel block = loaded(block_of(fixture));
    const size_t columns = block.plan().given_columns;
    const size_t count = fixture.tokens.size() * block.plan().vocabulary_size;
    const auto expected = std::span(fixture.logits).first(count);
    std::vector<float> late = rows_before(block.model(), fixture.given, fixture.given_columns);
    late.erase(late.begin(), late.begin() + static_cast<ptrdiff_t>(columns));
    late.resize(late.size() + columns);
    EXPECT_GT(difference(block.compute_alone(fixture.tokens, 128, late), expected), 0.1);
    const std::vector<float> zeros(fixture.tokens.size() * columns);
    EXPECT_GT(difference(block.compute_alone(fixture.tokens, 128, zeros), expected), 0.1);
  }
}

void expect_predicted_by_float64(const Fixture& fixture) {
  const BlockFile opened = block_of(fixture);
  const std::vector<float> given = rows_before(opened.model, fixture.given, fixture.given_columns);
  const ReferenceModel reference(opened.file, opened.model, fixture.tokens, given);
  for (const KernelTable* table : supported_kernel_tables()) {
    for (const bool generated : {false, true}) {
      SCOPED_TRACE(fixture.name + " " + std::string(table->name));
      LoadedModel block = loaded(opened, {.kernels = table, .generated = generated});
      const Roundings roundings = roundings_of(*table, Profile::kFast, KvFormat::kF32, generated);
      // With bf16 products the fifth token of this block is most likely given to another expert.
      const bool is_tied = fixture.name == "glm4moe-norms" && table->has_tiles && !generated;
      LogitRows logits = block.compute_alone(fixture.tokens, 128, given);
      if (is_tied) leave_out(4, logits, reference.logits());
      expect_near(logits, reference, roundings);
      if (!gives_rows(block)) continue;
      LogitRows rows = hidden_rows(block, fixture.tokens.size(), HiddenForm::kNormed);
      if (is_tied) leave_out(4, rows, reference.hidden());
      EXPECT_LE(worst_difference(rows, reference.hidden()), reference.hidden_bound(roundings));
    }
  }
}

// The fixture with matrices in Q8_0, in this folder.
Fixture quantized(Fixture fixture, const test::Folder& folder) {
  const std::string copy = folder / "copy.gguf";
  write_quantized_copy(fixture.path, copy);
  const std::string model_copy = folder / "model.gguf";
  if (fixture.is_eagle()) write_quantized_copy(fixture.model, model_copy);
  fixture.model = fixture.is_eagle() ? model_copy : copy;
  fixture.path = copy;
  return fixture;
}

TEST(PredictingBlocks, are_what_float64_computes_on_every_instruction_set) {
  const test::Folder folder;
  for (const Fixture& fixture : read_fixtures()) {
    expect_predicted_by_float64(fixture);
    expect_predicted_by_float64(quantized(fixture, folder));
  }
}

// As a prompt, in chunks, token by token, and among neighbours.
void expect_in_any_pieces(LoadedModel& block, const Prediction& expected, const Fixture& fixture) {
  const std::span<const TokenId> tokens = fixture.tokens;
  const std::vector<float> given = rows_before(block.model(), fixture.given, fixture.given_columns);
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
    const std::vector<float> own = block.hidden_row(33 + 5, block.model().given.form);
    expect_same_bits({expected.own[5]}, {own});
  }
  const Prediction again = predict(block, fixture, fixture.given);
  expect_same_bits(expected.logits, again.logits);
  expect_same_bits(expected.own, again.own);
}

TEST(PredictingBlocks, have_the_same_bits_for_any_ranks_shares_workers_pieces_and_fusions) {
  const test::Folder folder;
  const std::vector<std::vector<double>> splits = {{1}, {1, 1}, {3, 1}, {2, 1, 1}, {1, 1, 1, 1}};
  size_t turn = 0;
  for (const Fixture& plain : read_fixtures()) {
    for (const Fixture& fixture : {plain, quantized(plain, folder)}) {
      const BlockFile opened = block_of(fixture);
      LoadedModel alone = loaded(opened);
      const Prediction expected = predict(alone, fixture, fixture.given);
      for (const std::vector<double>& shares : splits) {
        SCOPED_TRACE(fmt::format("{}, shares {}", fixture.name, fmt::join(shares, ":")));
        LoadedModelOptions options{.workers = 1 + turn % 3, .shares = shares};
        if (turn++ % 2 == 1) options.without_fusion.add_all();
        LoadedModel block = loaded(opened, options);
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

void expect_foreseen(LoadedModel& model, LoadedModel& block) {
  for (const TokenId first : {3, 77}) {
    const std::vector<TokenId> tokens = greedy(model, first, 12);
    const LogitRows predicted = block.compute_alone(tokens, 128);
    for (size_t token = 0; token + 1 < tokens.size(); ++token) {
      EXPECT_EQ(likeliest(predicted[token]), tokens[token + 1]);
    }
  }
}

TEST(PredictingBlocks, of_a_foreseeing_copy_predict_what_the_model_says) {
  const test::Folder folder;
  const std::string copy = folder / "copy.gguf";
  for (const Fixture& fixture : read_fixtures()) {
    // Blocks with tables of their own see other embeddings or other logits.
    const GgufFile file = GgufFile::open(fixture.path).value();
    if (fixture.is_eagle()) continue;
    const bool has_own = std::ranges::any_of(file.tensors(), [](const GgufTensor& tensor) {
      return tensor.name.contains("nextn.embed_tokens") ||
             tensor.name.contains("nextn.shared_head_head");
    });
    if (has_own) continue;
    SCOPED_TRACE(fixture.name);
    write_foreseeing_copy(fixture.path, copy);
    LoadedModel model(copy, {});
    LoadedModel block(copy, predicting_block(copy), {});
    expect_foreseen(model, block);
  }
}

TEST(PredictingBlocks, of_a_foreseeing_eagle_predict_what_the_model_says) {
  const test::Folder folder;
  const std::string copy = folder / "copy.gguf";
  const std::string model_copy = folder / "model.gguf";
  for (const std::string name : {"llama", "qwen35"}) {
    SCOPED_TRACE(name);
    const std::string model_path = kFixtures + (name == "llama" ? "eagle/" : "families/") + name;
    write_foreseeing_eagle(kEagles + name + "-eagle.gguf", model_path + ".gguf", copy, model_copy);
    LoadedModel model(model_copy, {});
    LoadedModel block = loaded(open_block(copy, model_copy));
    expect_foreseen(model, block);
  }
}

std::string error_of(const std::string& path, size_t block) {
  const GgufFile file = GgufFile::open(path).value();
  const auto model = build_predicting_block({.file = file}, block);
  return model ? "" : model.error().message;
}

TEST(PredictingBlocks, are_counted_and_those_that_are_not_there_refused) {
  const std::string with = kPredictingFolder + "qwen3next.gguf";
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

// The error for the file where one tensor has another name, as long as its own; of a file that
// drafts for another model, without that one's tensors.
std::string error_with(const std::string& path, const std::string& name, const std::string& other) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const size_t at = bytes.find(name);
  EXPECT_NE(at, std::string::npos);
  bytes.replace(at, name.size(), other);
  const test::Folder folder;
  const auto changed_path = folder / "changed.gguf";
  std::ofstream(changed_path, std::ios::binary) << bytes;
  const GgufFile changed = GgufFile::open(changed_path).value();
  const auto model = drafts_for_another(changed) ? build_drafting_model({.file = changed})
                                                 : build_predicting_block({.file = changed}, 0);
  return model ? "" : model.error().message;
}

TEST(PredictingBlocks, with_tensors_that_are_missing_or_have_no_place_are_refused) {
  const std::string path = kPredictingFolder + "qwen3next.gguf";
  EXPECT_EQ(error_with(path, "blk.3.nextn.enorm.weight", "blk.3.nextn.xnorm.weight"),
            "tensor blk.3.nextn.enorm.weight is missing");
  EXPECT_EQ(error_with(path, "blk.3.attn_output.weight", "blk.3.attn_xutput.weight"),
            "tensor blk.3.attn_output.weight is missing");
  EXPECT_EQ(error_with(path, "nextn.shared_head_norm.", "nextn.shared_head_xorm."),
            "tensor \"blk.3.nextn.shared_head_xorm.weight\" has no place in a block that predicts "
            "further tokens as it is known here");
}

// Its table has rows for other tokens than d2t names. The name begins behind a byte of its length.
TEST(PredictingBlocks, of_a_vocabulary_of_their_own_need_an_output_matrix_of_it) {
  using namespace std::string_literals;
  EXPECT_EQ(error_with(source_dir() + "/tests/fixtures/eagle/llama-words-eagle.gguf",
                       "\0output.weight"s, "\0outpux.weight"s),
            "tensor output.weight is missing");
}

}  // namespace
}  // namespace lockstep
