// Drafts by a block that reads the model's rows, of its own file, EAGLE-3's or an assistant's,
// beside a model that computes prompts in chunks, generates greedily and verifies what was drafted.
#include "engine/serving/predicting_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/kernels/attention.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/predicting_model.h"
#include "tests/paths.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

const std::string kFixtures = source_dir() + "/tests/fixtures/";
const std::string kFolder = kFixtures + "predicting/";

// The files of a block and of its model, which may be one.
struct Files {
  std::string block;
  std::string model;
};

Files of_model(const std::string& name) {
  return {kFolder + name + ".gguf", kFolder + name + ".gguf"};
}

Files eagle(const std::string& name) {
  const bool is_hybrid = name.starts_with("qwen35");
  return {kFixtures + "eagle/" + name + "-eagle.gguf",
          kFixtures + (is_hybrid ? "families/qwen35.gguf" : "eagle/llama.gguf")};
}

Files assistant(const std::string& name) {
  return {kFixtures + "assistants/" + name + "-assistant.gguf",
          kFixtures + "families/" + name + ".gguf"};
}

TokenId likeliest(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

void expect_done(const Result<void>& result) {
  ASSERT_TRUE(result.has_value()) << result.error().message;
}

// One request: its text, and what a model and a block have of it.
struct Text {
  uint64_t id = 0;
  std::vector<TokenId> tokens;
  LoadedModel::Sequence model;
  LoadedModel::Sequence block;
  TextBorders borders = {};
  size_t drafted = 0;
  size_t accepted = 0;

  std::span<const uint32_t> pages() const { return block.tables.front(); }
};

// A model and its block, and the drafter between them.
class Pair {
 public:
  explicit Pair(const Files& files, const LoadedModelOptions& options = {})
      : files_(files),
        opened_(open_block(files.block, files.model)),
        model_(files.model, model_for(files.model, opened_.model), options),
        block_(opened_.file, opened_.model, options),
        stage_(model_.executor(), block_.executor(), block_.plan(),
               {.given = opened_.model.given,
                .logit_tokens = opened_.model.logit_tokens,
                .model_pages = block_.plan().kv.page_count,
                .positions = 512}) {}

  Text begin(uint64_t id, std::vector<TokenId> prompt) {
    Text text{.id = id, .tokens = std::move(prompt), .model = {}, .block = {}};
    text.model = model_.new_sequence(kTextTokens);
    text.block = block_.new_sequence(kTextTokens);
    stage_.clear_pages(text.pages());
    return text;
  }

  // Computes `count` tokens of the prompt; behind the last one the first token is known.
  void read_prompt(Text& text, size_t count) {
    const size_t begin = text.model.length;
    const std::span<const TokenId> tokens = std::span(text.tokens).subspan(begin, count);
    const LogitRows rows = model_.compute(std::vector<LoadedModel::Piece>{{text.model, tokens}}, 0);
    if (begin + count == text.tokens.size()) text.tokens.push_back(likeliest(rows.back()));
    expect_done(stage_.follow(std::vector{passed(text, begin, count, 0)}));
  }

  // One pass of the model over all texts, with so many drafted tokens of each.
  void generate(std::vector<Text*> texts, size_t drafts) {
    std::vector<DraftStream> streams;
    for (Text* text : texts) {
      streams.push_back({.sequence = text->id,
                         .tokens = text->tokens,
                         .pages = text->pages(),
                         .borders = text->borders,
                         .most = drafts,
                         .drafts = {}});
    }
    expect_done(stage_.draft(streams));
    std::vector<std::vector<TokenId>> tokens;
    for (size_t index = 0; index < texts.size(); ++index) {
      tokens.push_back({texts[index]->tokens.back()});
      const std::vector<TokenId>& drafted = streams[index].drafts;
      tokens.back().insert(tokens.back().end(), drafted.begin(), drafted.end());
    }
    verify(texts, tokens);
  }

  // Whether a token is computed at the place of the one before.
  bool stores_rows() const { return !opened_.model.given.keys.empty(); }
  // The tokens that the stage has followed of a text of so many known ones.
  size_t followed_of(size_t known) const { return known - (stores_rows() ? 1 : 0); }

  // The block's drafts behind a text, all of it computed at once.
  std::vector<TokenId> drafts_from_scratch(const Text& text, size_t count) {
    const Model& shape = opened_.model;
    LoadedModel model(files_.model, model_for(files_.model, shape), {});
    LoadedModel block(opened_.file, shape, {});
    auto sequence = block.new_sequence(kTextTokens);
    model.compute_alone(text.tokens, 128);
    const size_t columns = block.plan().given_columns;
    std::vector<float> given(stores_rows() ? 0 : columns);
    for (size_t token = 0; token + 1 < text.tokens.size(); ++token) {
      std::vector<float> row;
      if (shape.given.layers.empty()) row = model.hidden_row(token, shape.given.form);
      const std::vector<float> kept = model.kept_row(token);
      row.insert(row.end(), kept.begin(), kept.end());
      row.resize(columns);
      given.insert(given.end(), row.begin(), row.end());
    }
    const size_t keys = shape.given.key_columns();
    const auto last = std::span<const float>(given).last(columns);
    const auto last_keys = last.subspan(shape.given.own_begin - keys, keys);
    const std::vector<float> kept_keys(last_keys.begin(), last_keys.end());
    std::vector<TokenId> drafts;
    std::vector<TokenId> next = text.tokens;
    if (stores_rows()) next.erase(next.begin());
    while (drafts.size() < count) {
      const LogitRows rows =
          block.compute(std::vector<LoadedModel::Piece>{{sequence, next, given}});
      const TokenId found = likeliest(rows.back());
      const std::vector<TokenId>& words = shape.logit_tokens;
      drafts.push_back(words.empty() ? found : words[static_cast<size_t>(found)]);
      if (block.plan().hidden.width == 0) break;
      if (stores_rows()) sequence.length = text.tokens.size() - 2;
      given.assign(shape.given.own_begin - keys, 0);
      given.insert(given.end(), kept_keys.begin(), kept_keys.end());
      const std::vector<float> own = block.hidden_row(rows.size() - 1, shape.given.form);
      given.insert(given.end(), own.begin(), own.end());
      next = {drafts.back()};
    }
    return drafts;
  }

  PredictingStage& stage() { return stage_; }
  LoadedModel& model() { return model_; }
  std::vector<TokenId> last_drafts;  // of the first text, in the last pass

 private:
  static constexpr size_t kTextTokens = 120;

  static PassedChunk passed(Text& text, size_t begin, size_t count, size_t first_token) {
    return {.sequence = text.id,
            .tokens = text.tokens,
            .pages = text.pages(),
            .borders = text.borders,
            .begin = begin,
            .count = count,
            .first_token = first_token};
  }

  void verify(std::vector<Text*> texts, const std::vector<std::vector<TokenId>>& tokens) {
    std::vector<LoadedModel::Piece> pieces;
    size_t all = 0;
    for (size_t index = 0; index < texts.size(); ++index) {
      pieces.push_back({texts[index]->model, tokens[index]});
      all += tokens[index].size();
    }
    last_drafts.assign(tokens.front().begin() + 1, tokens.front().end());
    const LogitRows rows = model_.compute(pieces, all);
    std::vector<PassedChunk> parts;
    size_t first = 0;
    for (size_t index = 0; index < texts.size(); ++index) {
      Text& text = *texts[index];
      const size_t begin = text.tokens.size() - 1;
      size_t row = 0;
      text.tokens.push_back(likeliest(rows[first]));
      while (row + 1 < tokens[index].size() && tokens[index][row + 1] == text.tokens.back()) {
        text.tokens.push_back(likeliest(rows[first + ++row]));
      }
      text.drafted += tokens[index].size() - 1;
      text.accepted += row;
      text.model.length = text.tokens.size() - 1;
      parts.push_back(passed(text, begin, tokens[index].size(), first));
      first += tokens[index].size();
    }
    expect_done(stage_.follow(parts));
  }

  const Files files_;
  const BlockFile opened_;
  LoadedModel model_;
  LoadedModel block_;
  PredictingStage stage_;
};

// The model's text without drafts.
std::vector<TokenId> expected_text(const std::string& path, std::vector<TokenId> tokens,
                                   size_t count) {
  LoadedModel model(path, {});
  auto sequence = model.new_sequence(count);
  std::vector<TokenId> next = tokens;
  size_t prompted = 0;
  while (tokens.size() < count) {
    const auto rows = model.compute(std::vector<LoadedModel::Piece>{{sequence, next}}, prompted);
    tokens.push_back(likeliest(rows.back()));
    next = {tokens.back()};
    prompted = 1;
  }
  return tokens;
}

// Models without states: where some of a draft is wrong these would be wrong as well.
const Files kFiles[] = {of_model("glm4moe-norms"), of_model("deepseek2-v3"), of_model("deepseek32"),
                        of_model("mimo2"),         eagle("llama"),           eagle("llama-words"),
                        eagle("llama-output"),     assistant("gemma4"),      assistant("gemma4-e"),
                        assistant("gemma4-moe")};
// Blocks that have the model's table and output matrix: all drafts are right.
const char* const kForeseeing[] = {"qwen35", "deepseek32", "mimo2"};

TEST(PredictingStage, drafts_what_the_block_computes_of_the_whole_text) {
  for (const Files& files : kFiles) {
    SCOPED_TRACE(files.block);
    Pair pair(files);
    Text text = pair.begin(7, some_tokens(40, 5));
    for (const size_t count : {1U, 22U, 17U}) pair.read_prompt(text, count);
    EXPECT_EQ(pair.stage().followed(7), pair.followed_of(41));
    for (int pass = 0; pass < 6; ++pass) {
      const std::vector<TokenId> drafts = pair.drafts_from_scratch(text, 3);
      pair.generate({&text}, 3);
      EXPECT_EQ(pair.last_drafts, drafts);
    }
    const std::vector<TokenId> prompt = some_tokens(40, 5);
    EXPECT_EQ(text.tokens, expected_text(files.model, prompt, text.tokens.size()));
  }
}

TEST(PredictingStage, is_right_where_the_block_foresees_the_model) {
  const test::Folder folder;
  const std::string copy = folder / "copy.gguf";
  const auto expect_right = [&](const Files& files) {
    for (const std::vector<double>& shares : {std::vector<double>{1}, {2, 1}}) {
      Pair pair(files, {.shares = shares});
      Text one = pair.begin(1, some_tokens(30, 5));
      Text other = pair.begin(2, some_tokens(3, 9));
      pair.read_prompt(one, 20);
      pair.read_prompt(other, 3);
      pair.generate({&other}, 4);
      pair.read_prompt(one, 10);
      for (int pass = 0; pass < 5; ++pass) pair.generate({&other, &one}, 4);
      EXPECT_EQ(one.drafted, 20U);
      EXPECT_EQ(one.accepted, 20U);
      EXPECT_EQ(other.drafted, 24U);
      EXPECT_EQ(other.accepted, 24U);
    }
  };
  for (const char* const name : kForeseeing) {
    SCOPED_TRACE(name);
    write_foreseeing_copy(kFolder + name + ".gguf", copy);
    expect_right({copy, copy});
  }
  const std::string model_copy = folder / "model.gguf";
  for (const char* const name : {"llama", "qwen35"}) {
    SCOPED_TRACE(name);
    write_foreseeing_eagle(eagle(name).block, eagle(name).model, copy, model_copy);
    expect_right({copy, model_copy});
  }
  for (const char* const name : {"gemma4", "gemma4-moe"}) {
    SCOPED_TRACE(name);
    write_foreseeing_assistant(assistant(name).block, assistant(name).model, copy, model_copy);
    expect_right({copy, model_copy});
  }
}

TEST(PredictingStage, drafts_nothing_of_a_text_that_it_has_not_followed) {
  Pair pair(of_model("deepseek32"));
  Text text = pair.begin(7, some_tokens(20, 5));
  pair.read_prompt(text, 10);
  EXPECT_EQ(pair.stage().followed(7), 11U);
  pair.stage().forget(7);
  pair.stage().clear_pages(text.pages());
  pair.read_prompt(text, 10);
  EXPECT_EQ(pair.stage().followed(7), 0U);
  pair.generate({&text}, 3);
  EXPECT_EQ(text.drafted, 0U);
  // From the first token on it is followed again.
  text.model.length = 0;
  text.tokens.resize(20);
  pair.read_prompt(text, 20);
  pair.generate({&text}, 3);
  EXPECT_EQ(text.drafted, 3U);
}

// As a sequence that finds the first pages of its text computed does.
TEST(PredictingStage, goes_on_from_pages_that_it_has_computed) {
  for (const Files& files : {of_model("deepseek32"), eagle("llama-words"), assistant("gemma4")}) {
    Pair pair(files);
    Text text = pair.begin(7, some_tokens(70, 5));
    pair.read_prompt(text, 70);
    pair.stage().forget(7);
    Text other = {.id = 8, .tokens = text.tokens, .model = text.model, .block = text.block};
    other.tokens.resize(70);
    other.model.length = kPageTokens;
    pair.read_prompt(other, 70 - kPageTokens);
    EXPECT_EQ(pair.stage().followed(8), pair.followed_of(71));
    EXPECT_EQ(other.tokens, text.tokens);
    pair.generate({&other}, 3);
    EXPECT_EQ(other.drafted, 3U);
  }
}

}  // namespace
}  // namespace lockstep
