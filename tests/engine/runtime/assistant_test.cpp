// gemma4-assistant files, as models of their own: their logits against those of llama.cpp for the
// same files, and against float64; and their bits however the work is cut. The fixtures are made by
// scripts/models/make_assistant_fixtures.py.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/model/given_rows.h"
#include "engine/planner/gpu_gap.h"
#include "engine/planner/split_graph.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/predicting_model.h"
#include "tests/engine/runtime/quantized_copy.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/engine/runtime/value_or_throw.h"
#include "tests/paths.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

const std::string kFixtures = source_dir() + "/tests/fixtures/";
const std::string kAssistants = kFixtures + "assistants/";

// In units of the logits' spread. llama.cpp looks GELU up in a table of halves, so that its logits
// are less exact where feed-forwards add anything.
constexpr double kTolerance = 1e-3;
constexpr double kTableTolerance = 0.05;

struct Fixture {
  std::string name;
  std::string path;
  std::string model;
  std::vector<TokenId> tokens;
  std::vector<TokenId> steps;  // behind them
  std::vector<float> logits;   // llama.cpp's, of all tokens but the first, and of steps
  // The same of copies whose feed-forwards add nothing.
  std::vector<TokenId> flat_steps = {};
  std::vector<float> flat_logits = {};

  // That the assistant reads of the text: each at the place of the one before.
  std::span<const TokenId> read() const { return std::span(tokens).subspan(1); }
};

std::vector<Fixture> read_fixtures() {
  std::ifstream file(kAssistants + "index.json");
  const auto index = nlohmann::json::parse(file);
  std::vector<Fixture> fixtures;
  for (const auto& each : index.at("models")) {
    const std::string name = each.at("name");
    fixtures.push_back({.name = name,
                        .path = kAssistants + each.at("file").get<std::string>(),
                        .model = kFixtures + each.at("model").get<std::string>(),
                        .tokens = each.at("tokens"),
                        .steps = each.at("steps"),
                        .logits = read_floats(kAssistants + name + "-logits.f32"),
                        .flat_steps = each.at("flat_steps"),
                        .flat_logits = read_floats(kAssistants + name + "-flat.f32")});
  }
  EXPECT_EQ(fixtures.size(), 3U);
  return fixtures;
}

LoadedModel loaded(const BlockFile& block, const LoadedModelOptions& options = {}) {
  return LoadedModel(block.file, block.model, options);
}

// A token's row as the assistant is given it: the model's hidden row, keys and values, and zeros.
std::vector<float> given_row_of(LoadedModel& model, size_t token, size_t columns) {
  std::vector<float> row = model.hidden_row(token, HiddenForm::kNormed);
  const std::vector<float> kept = model.kept_row(token);
  row.insert(row.end(), kept.begin(), kept.end());
  row.resize(columns);
  return row;
}

// The rows of a text: its tokens in one pass.
std::vector<float> given_rows_of(const Fixture& fixture, const Model& assistant,
                                 const LoadedModelOptions& options = {}) {
  LoadedModel model(fixture.model, model_for(fixture.model, assistant), options);
  model.compute_alone(fixture.tokens, 128);
  std::vector<float> rows;
  for (size_t token = 0; token < fixture.tokens.size(); ++token) {
    const auto row = given_row_of(model, token, assistant.graph.given_columns());
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// The assistant's logits of a text, and of steps behind it, all at the place of the text's last
// token; each but the first step reads the assistant's own row of the one before.
LogitRows predict(LoadedModel& assistant, const Fixture& fixture, std::span<const float> rows) {
  const GivenRows& given = assistant.model().given;
  const size_t columns = assistant.plan().given_columns;
  auto sequence = assistant.new_sequence(fixture.tokens.size());
  LogitRows found = assistant.compute(std::vector<LoadedModel::Piece>{
      {sequence, fixture.read(), rows.first(fixture.read().size() * columns)}});
  std::vector<float> row(rows.end() - static_cast<ptrdiff_t>(columns), rows.end());
  for (const TokenId& step : fixture.steps) {
    sequence.length = fixture.tokens.size() - 1;
    auto logits =
        assistant.compute(std::vector<LoadedModel::Piece>{{sequence, std::span(&step, 1), row}}, 1);
    found.push_back(std::move(logits.front()));
    const std::vector<float> own = assistant.hidden_row(0, HiddenForm::kNormed);
    std::fill_n(row.begin(), given.own_begin - given.key_columns(), 0.0F);
    std::ranges::copy(own, row.begin() + static_cast<ptrdiff_t>(given.own_begin));
  }
  assistant.give_back(sequence);
  return found;
}

void write_flat_copy(const std::filesystem::path& path, const std::filesystem::path& copy) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
  std::fstream out(copy, std::ios::binary | std::ios::in | std::ios::out);
  for (const GgufTensor& tensor : file.tensors()) {
    if (!tensor.name.contains("ffn_down") && !tensor.name.ends_with(".proj.weight")) continue;
    out.seekp(static_cast<std::streamoff>(tensor.offset));
    const std::string zeros(tensor.size_bytes, '\0');
    out.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
  }
}

// The fixture with copies of both files in this folder, written so.
Fixture copied(Fixture fixture, const test::Folder& folder,
               void (*write)(const std::filesystem::path& path,
                             const std::filesystem::path& copy)) {
  for (auto [file, name] :
       {std::pair(&fixture.path, "copy.gguf"), std::pair(&fixture.model, "model.gguf")}) {
    const std::string copy = folder / name;
    write(*file, copy);
    *file = copy;
  }
  return fixture;
}

// The fixture whose feed-forwards add nothing, in this folder.
Fixture flat(const Fixture& of, const test::Folder& folder) {
  Fixture fixture = copied(of, folder, write_flat_copy);
  fixture.steps = fixture.flat_steps;
  fixture.logits = fixture.flat_logits;
  return fixture;
}

void expect_llama_cpps(const Fixture& fixture, double tolerance) {
  const BlockFile opened = open_block(fixture.path, fixture.model);
  for (const KernelTable* table : supported_kernel_tables()) {
    SCOPED_TRACE(fixture.name + " " + std::string(table->name));
    const auto rows = given_rows_of(fixture, opened.model, {.kernels = table});
    LoadedModel assistant = loaded(opened, {.kernels = table});
    const LogitRows found = predict(assistant, fixture, rows);
    EXPECT_LT(difference(found, fixture.logits), tolerance);
    // The steps are what the assistant itself predicts.
    for (size_t step = 1; step < fixture.steps.size(); ++step) {
      EXPECT_EQ(likeliest(found[fixture.read().size() + step - 1]), fixture.steps[step]);
    }
  }
}

TEST(Assistants, have_the_logits_of_llama_cpp_on_every_instruction_set) {
  const test::Folder folder;
  for (const Fixture& fixture : read_fixtures()) {
    expect_llama_cpps(fixture, kTableTolerance);
    expect_llama_cpps(flat(fixture, folder), kTolerance);
  }
}

// All that is given matters: the hidden row, keys and values of each layer, and the own row.
TEST(Assistants, read_all_that_they_are_given) {
  for (const Fixture& fixture : read_fixtures()) {
    SCOPED_TRACE(fixture.name);
    const BlockFile opened = open_block(fixture.path, fixture.model);
    const GivenRows& given = opened.model.given;
    const std::vector<float> rows = given_rows_of(fixture, opened.model);
    LoadedModel assistant = loaded(opened);
    const size_t columns = opened.model.graph.given_columns();
    std::vector<size_t> borders = {0, given.own_begin - given.key_columns()};
    for (const GivenKeys& keys : given.keys) {
      borders.push_back(borders.back() + keys.columns() / 2);
      borders.push_back(borders.back() + keys.columns() / 2);
    }
    ASSERT_EQ(borders.size(), 6U);
    ASSERT_EQ(borders.back(), given.own_begin);
    for (size_t part = 0; part + 1 < borders.size(); ++part) {
      std::vector<float> less = rows;
      for (auto row = less.begin(); row != less.end(); row += static_cast<ptrdiff_t>(columns)) {
        std::fill(row + static_cast<ptrdiff_t>(borders[part]),
                  row + static_cast<ptrdiff_t>(borders[part + 1]), 0.0F);
      }
      EXPECT_GT(difference(predict(assistant, fixture, less), fixture.logits), 0.1) << part;
    }
  }
}

void expect_what_float64_computes(const Fixture& fixture) {
  const BlockFile opened = open_block(fixture.path, fixture.model);
  std::vector<float> rows = given_rows_of(fixture, opened.model);
  rows.resize(fixture.read().size() * opened.model.graph.given_columns());
  const std::vector<TokenId> tokens(fixture.read().begin(), fixture.read().end());
  const ReferenceModel reference(opened.file, opened.model, tokens, rows);
  for (const KernelTable* table : supported_kernel_tables()) {
    for (const bool generated : {false, true}) {
      SCOPED_TRACE(fixture.name + " " + std::string(table->name));
      LoadedModel assistant = loaded(opened, {.kernels = table, .generated = generated});
      const Roundings roundings = roundings_of(*table, Profile::kFast, KvFormat::kF32, generated);
      expect_near(assistant.compute_alone(tokens, 128, rows), reference, roundings);
      LogitRows own;
      for (size_t token = 0; token < tokens.size(); ++token) {
        own.push_back(assistant.hidden_row(token, HiddenForm::kNormed));
      }
      EXPECT_LE(worst_difference(own, reference.hidden()), reference.hidden_bound(roundings));
    }
  }
}

TEST(Assistants, are_what_float64_computes_on_every_instruction_set) {
  const test::Folder folder;
  for (const Fixture& fixture : read_fixtures()) {
    expect_what_float64_computes(fixture);
    expect_what_float64_computes(copied(fixture, folder, write_quantized_copy));
  }
}

// In chunks, token by token, and among neighbours.
void expect_in_any_pieces(LoadedModel& assistant, const LogitRows& expected, const Fixture& fixture,
                          std::span<const float> rows) {
  const std::span<const TokenId> tokens = fixture.read();
  const auto given = rows.first(tokens.size() * assistant.plan().given_columns);
  const LogitRows logits(expected.begin(),
                         expected.begin() + static_cast<ptrdiff_t>(tokens.size()));
  for (const size_t chunk : {7U, 1U}) {
    expect_same_bits(logits, assistant.compute_alone(tokens, chunk, given));
  }
  const auto others = some_tokens(33, 4);
  auto before = assistant.new_sequence(others.size());
  auto mine = assistant.new_sequence(tokens.size());
  const LogitRows all =
      assistant.compute(std::vector<LoadedModel::Piece>{{before, others}, {mine, tokens, given}});
  expect_same_bits(logits, LogitRows(all.begin() + 33, all.end()));
  expect_same_bits(expected, predict(assistant, fixture, rows));
}

// The model's rows as well: what it keeps of its keys and values.
TEST(Assistants, have_the_same_bits_for_any_ranks_shares_workers_pieces_and_fusions) {
  const test::Folder folder;
  const std::vector<std::vector<double>> splits = {{1}, {1, 1}, {3, 1}, {2, 1, 1}, {1, 1, 1, 1}};
  size_t turn = 0;
  for (const Fixture& plain : read_fixtures()) {
    for (const Fixture& fixture : {plain, copied(plain, folder, write_quantized_copy)}) {
      const BlockFile opened = open_block(fixture.path, fixture.model);
      const std::vector<float> rows = given_rows_of(fixture, opened.model);
      LoadedModel alone = loaded(opened);
      const LogitRows expected = predict(alone, fixture, rows);
      for (const std::vector<double>& shares : splits) {
        SCOPED_TRACE(fmt::format("{}, shares {}", fixture.name, fmt::join(shares, ":")));
        LoadedModelOptions options{.workers = 1 + turn % 3, .shares = shares};
        if (turn++ % 2 == 1) options.without_fusion.add_all();
        if (split_graph(model_for(fixture.model, opened.model).graph, shares, Strategy::kGather)) {
          EXPECT_EQ(given_rows_of(fixture, opened.model, options), rows);
        }
        if (!split_graph(opened.model.graph, shares, Strategy::kGather)) continue;
        LoadedModel assistant = loaded(opened, options);
        expect_in_any_pieces(assistant, expected, fixture, rows);
      }
    }
  }
}

// Keeping keys and values changes no logit of the model.
TEST(Assistants, change_no_logit_of_the_model) {
  for (const Fixture& fixture : read_fixtures()) {
    const BlockFile opened = open_block(fixture.path, fixture.model);
    LoadedModel plain(fixture.model, {});
    LoadedModel keeping(fixture.model, model_for(fixture.model, opened.model), {});
    expect_same_bits(plain.compute_alone(fixture.tokens, 9),
                     keeping.compute_alone(fixture.tokens, 9));
  }
}

TEST(Assistants, store_the_keys_of_their_queries_heads_alone) {
  const Fixture fixture = read_fixtures().front();
  const BlockFile opened = open_block(fixture.path, fixture.model);
  LoadedModel two = loaded(opened, {.shares = {1, 1}});
  size_t heads = 0;
  for (size_t rank = 0; rank < 2; ++rank) {
    const KvLayout& kv = two.executor().ranks()[rank].plan().kv;
    EXPECT_EQ(kv.group_count(), 1U);
    EXPECT_TRUE(kv.windows.front().sees_all());
    heads += kv.layers.front().head_count;
  }
  EXPECT_EQ(heads, opened.model.given.keys.front().kv_heads);
}

TEST(Assistants, of_a_foreseeing_copy_predict_what_the_model_says) {
  const test::Folder folder;
  for (Fixture fixture : read_fixtures()) {
    if (fixture.name == "gemma4-e") continue;  // whose layers add embeddings of their own
    SCOPED_TRACE(fixture.name);
    const std::string copy = folder / "copy.gguf";
    const std::string model_copy = folder / "model.gguf";
    write_foreseeing_assistant(fixture.path, fixture.model, copy, model_copy);
    fixture.path = copy;
    fixture.model = model_copy;
    const BlockFile opened = open_block(copy, model_copy);
    LoadedModel model(model_copy, {});
    LoadedModel assistant = loaded(opened);
    const LogitRows logits = model.compute_alone(fixture.tokens, 128);
    const LogitRows found = predict(assistant, fixture, given_rows_of(fixture, opened.model));
    size_t same = 0;
    for (size_t token = 0; token < fixture.read().size(); ++token) {
      EXPECT_EQ(likeliest(found[token]), likeliest(logits[token + 1])) << token;
      if (likeliest(found[token]) == fixture.read()[token]) ++same;
    }
    EXPECT_LT(same, fixture.tokens.size() / 2) << "a token that repeats itself shows little";
  }
}

TEST(Assistants, have_rotary_positions_that_gpus_lack) {
  for (const size_t offset : {0U, 1U}) {
    Graph graph;
    graph.add_rotary({.pairs = RotaryPairs::kHalves, .frequencies = {1, 0.5}, .offset = offset});
    const WeightId table = graph.add_matrix("table", Format::kF32, 64, 64);
    const ValueId x = graph.embed(table);
    const ValueId q = graph.rotary(x, 1);
    const ValueId y = graph.attention(0, q, x, x, 1, 1, {.scale = 1});
    graph.set_logits(graph.matmul(y, table));
    const auto gap = find_gpu_gap(graph, {}, /*alone=*/true);
    EXPECT_EQ(gap.has_value(), offset != 0) << gap.value_or("");
    if (gap) {
      EXPECT_EQ(*gap, "rotary positions beside the tokens' own");
    }
  }
}

// Why the assistant cannot be built where these bytes stand in the place of others, as many.
std::string error_with(const Fixture& fixture, const std::string& part, const std::string& other) {
  std::ifstream file(fixture.path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const size_t at = bytes.find(part);
  EXPECT_NE(at, std::string::npos);
  EXPECT_EQ(part.size(), other.size());
  bytes.replace(at, part.size(), other);
  const test::Folder folder;
  const std::string changed = folder / "changed.gguf";
  std::ofstream(changed, std::ios::binary) << bytes;
  try {
    open_block(changed, fixture.model);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Assistants, with_tensors_or_keys_that_are_missing_or_have_no_place_are_refused) {
  const Fixture fixture = read_fixtures().front();
  for (const std::string name :
       {"token_embd.weight", "nextn.pre_projection.weight", "nextn.post_projection.weight",
        "output_norm.weight", "blk.1.attn_norm.weight", "blk.0.attn_q.weight",
        "blk.2.attn_q_norm.weight", "blk.2.attn_output.weight", "blk.0.post_attention_norm.weight",
        "blk.1.ffn_norm.weight", "blk.1.ffn_down.weight", "blk.1.post_ffw_norm.weight",
        "blk.2.layer_output_scale.weight"}) {
    std::string other = name;
    other[other.size() - 8] = 'X';
    EXPECT_NE(error_with(fixture, name, other).find("tensor " + name + " is missing"),
              std::string::npos)
        << error_with(fixture, name, other);
  }
  EXPECT_NE(error_with(fixture, "rope_freqs.weight", "rope_freqX.weight")
                .find("\"rope_freqX.weight\" has no place in architecture gemma4-assistant"),
            std::string::npos);
  EXPECT_NE(error_with(fixture, "embedding_length_out", "embedding_length_oXt")
                .find("gemma4-assistant.embedding_length_out is missing"),
            std::string::npos);
  EXPECT_NE(error_with(fixture, "attention.sliding_window\x04", "attention.sliding_windoX\x04")
                .find("gemma4-assistant.attention.sliding_window is missing"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
