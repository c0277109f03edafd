// Invariant: the logits of a token have the same bits whatever the instruction set, the number of
// workers, the chunks its prompt came in, and its neighbours in the batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/tile_emulation.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_family.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

const std::string kFolder = source_dir() + "/tests/fixtures/logits/";

// Every format, two with two formats, mixtures of experts, matrices and experts with scales, and
// files of each architecture.
class Models {
 public:
  Models() {
    for (const FormatTraits& format : all_formats()) add(format.format, format.format);
    add(Format::kQ4_K, Format::kQ6_K);
    add(Format::kQ8_0, Format::kF16);
    add(Format::kQ4_0, Format::kQ4_0, {.count = 7, .used = 3});
    add(Format::kQ4_K, Format::kQ6_K, {.count = 4, .used = 2});
    add(Format::kBf16, Format::kF16, {.count = 5, .used = 1});
    add(Format::kF32, Format::kF32, {.count = 3, .used = 3});
    add_scaled("llama", Format::kQ8_0);
    add_scaled("qwen3moe", Format::kF32);
    for (const char* name : {"llama-gqa-f16", "qwen3-gqa-f32", "qwen2-mha-f16"}) {
      paths_.push_back(kFolder + name + ".gguf");
    }
  }

  const std::vector<std::string>& paths() const { return paths_; }

 private:
  void add(Format format, Format others, RandomModel::Experts experts = {}) {
    made_.push_back(std::make_unique<RandomModel>(format, others, /*seed=*/11, experts));
    paths_.push_back(made_.back()->path());
  }

  void add_scaled(const char* architecture, Format format) {
    FamilyFile file = family_file(architecture);
    file.format = format;
    file.scales = true;
    scaled_.push_back(std::make_unique<RandomFamily>(file, /*seed=*/12));
    paths_.push_back(scaled_.back()->path());
  }

  std::vector<std::unique_ptr<RandomModel>> made_;
  std::vector<std::unique_ptr<RandomFamily>> scaled_;
  std::vector<std::string> paths_;
};

// Which instruction sets compute prompts alike: those with the same number. Under `fast`, rows with
// bf16 dot products multiply BF16 weights in another order than the others, and the row with tiles
// rounds activations to bf16.
constexpr size_t kArithmetics = 3;
size_t prompt_arithmetic(const KernelTable& table, Profile profile, const std::string& model) {
  if (profile == Profile::kExact) return 0;
  if (table.has_tiles) return 2;
  return table.has_bf16_dots && model.find("BF16") != model.npos ? 1 : 0;
}

TEST(SameBits, on_every_instruction_set_and_for_any_number_of_workers) {
  const Models models;
  const auto tokens = some_tokens(90, 1);
  for (const std::string& model : models.paths()) {
    SCOPED_TRACE(model);
    std::array<LogitRows, kArithmetics> firsts;
    for (const KernelTable* table : supported_kernel_tables()) {
      LogitRows& first = firsts[prompt_arithmetic(*table, Profile::kFast, model)];
      for (const size_t workers : {1U, 2U, 3U, 5U}) {
        SCOPED_TRACE(std::string(table->name) + ", " + std::to_string(workers) + " workers");
        LoadedModel loaded(model, {.kernels = table, .workers = workers});
        const LogitRows rows = loaded.compute_alone(tokens, 128);
        if (first.empty()) first = rows;
        expect_same_bits(first, rows);
      }
    }
  }
}

TEST(SameBits, in_any_chunks) {
  const Models models;
  const auto tokens = some_tokens(90, 2);
  for (const KvFormats format :
       {KvFormats(KvFormat::kF32), KvFormats(KvFormat::kF16), KvFormats(KvFormat::kBf16),
        KvFormats(KvFormat::kQ8_0), KvFormats(KvFormat::kQ4H, KvFormat::kQ4_0)}) {
    for (const std::string& model : models.paths()) {
      SCOPED_TRACE(model);
      if (!kv_format_fits(format.keys, LoadedModel(model, {}).plan().kv.layers[0].key_dimension)) {
        continue;
      }
      LoadedModel loaded(model, {.workers = 2, .kv_format = format});
      const LogitRows whole = loaded.compute_alone(tokens, 128);
      for (const size_t chunk : {1U, 7U, 32U, 64U, 65U}) {
        SCOPED_TRACE("chunks of " + std::to_string(chunk));
        expect_same_bits(whole, loaded.compute_alone(tokens, chunk));
      }
    }
  }
}

// Keys and values of 4 bits, turned or not: on every instruction set, for workers, ranks, chunks
// and windows, prompted and generated.
TEST(SameBits, of_keys_and_values_of_4_bits) {
  const auto tokens = some_tokens(330, 12);
  const RandomModel windows(Format::kQ8_0, Format::kF16, /*seed=*/11, /*window=*/70);
  const RandomModel plain(Format::kQ4_K, Format::kQ6_K, /*seed=*/11);
  for (const KvFormats format :
       {KvFormats(KvFormat::kQ4H), KvFormats(KvFormat::kQ4_0, KvFormat::kQ4H),
        KvFormats(KvFormat::kQ8_0, KvFormat::kQ4H)}) {
    for (const std::string& model : {windows.path(), plain.path()}) {
      LogitRows first;
      for (const KernelTable* table : supported_kernel_tables()) {
        SCOPED_TRACE(fmt::format("{} {}", table->name, model));
        const auto load = [&](size_t workers, std::vector<double> shares, bool generated) {
          return LoadedModel(model, {.kernels = table,
                                     .workers = workers,
                                     .shares = std::move(shares),
                                     .kv_format = format,
                                     .profile = Profile::kExact,
                                     .generated = generated,
                                     .batch_tokens = 512});
        };
        LoadedModel alone = load(1, {1}, false);
        const LogitRows rows = alone.compute_alone(tokens, 330);
        if (first.empty()) first = rows;
        expect_same_bits(first, rows);
        expect_same_bits(first, alone.compute_alone(tokens, 61));
        if (table->name == "scalar") continue;  // the rest takes long
        expect_same_bits(first, load(3, {2, 1}, false).compute_alone(tokens, 100));
        expect_same_bits(first, load(2, {1, 1}, true).compute_alone(tokens, 1));
      }
    }
  }
}

TEST(SameBits, among_neighbours) {
  const Models models;
  const auto tokens = some_tokens(40, 3);
  for (const std::string& model : models.paths()) {
    SCOPED_TRACE(model);
    LoadedModel loaded(model, {.workers = 2});
    const LogitRows alone = loaded.compute_alone(tokens, 128);
    auto before = loaded.new_sequence(70);
    auto mine = loaded.new_sequence(40);
    auto after = loaded.new_sequence(70);
    const auto others = some_tokens(33, 4);
    const std::vector<LoadedModel::Piece> pieces = {
        {before, others}, {mine, tokens}, {after, std::span(others).first(5)}};
    const LogitRows among = loaded.compute(pieces);
    expect_same_bits(alone, LogitRows(among.begin() + 33, among.begin() + 73));
  }
}

// Prompts and generation are one function, the same on every instruction set: of `exact` always, of
// `fast` on those whose prompts have no arithmetic of their own.
TEST(SameBits, prompted_and_generated) {
  const Models models;
  const auto tokens = some_tokens(40, 5);
  for (const std::string& model : models.paths()) {
    for (const Profile profile : {Profile::kExact, Profile::kFast}) {
      std::array<LogitRows, kArithmetics> firsts;
      for (const KernelTable* table : supported_kernel_tables()) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", model, profile_name(profile), table->name));
        if (profile == Profile::kFast && table->has_tiles) continue;
        LogitRows& first = firsts[prompt_arithmetic(*table, profile, model)];
        LoadedModel prompted(model, {.kernels = table, .workers = 2, .profile = profile});
        const LogitRows rows = prompted.compute_alone(tokens, 128);
        if (first.empty()) first = rows;
        expect_same_bits(first, rows);
        expect_same_bits(rows, prompted.compute_alone(tokens, 9));
        LoadedModel generated(
            model, {.kernels = table, .shares = {1, 1}, .profile = profile, .generated = true});
        expect_same_bits(rows, generated.compute_alone(tokens, 1));
      }
    }
  }
}

// Whole models on the row of AMX, whose tile instructions are emulated where there are none: a
// prompt that takes two tiles of tokens, and a generated token.
TEST(SameBits, on_amx) {
  const TileEmulation emulation;
  if (!emulation.obstacle().empty()) GTEST_SKIP() << emulation.obstacle();
  const RandomModel k_quants(Format::kQ4_K, Format::kQ6_K, /*seed=*/11);
  const RandomModel floats(Format::kBf16, Format::kF16, /*seed=*/11);
  const auto tokens = some_tokens(18, 8);
  for (const std::string& model :
       {k_quants.path(), floats.path(), source_dir() + "/config/demo.gguf"}) {
    SCOPED_TRACE(model);
    LoadedModel avx512(model, {.kernels = &avx512_kernel_table(), .profile = Profile::kExact});
    const LogitRows expected = avx512.compute_alone(tokens, 128);
    LoadedModel amx(model,
                    {.kernels = &amx_kernel_table(), .workers = 2, .profile = Profile::kExact});
    auto sequence = amx.new_sequence(tokens.size());
    const auto compute = [&](std::span<const TokenId> part) {
      return amx.compute(std::vector<LoadedModel::Piece>{{sequence, part}});
    };
    const LogitRows prompted = compute(std::span(tokens).first(17));
    expect_same_bits({expected.begin(), expected.end() - 1}, prompted);
    amx.set_generated(true);
    expect_same_bits({expected.back()}, compute(std::span(tokens).last(1)));
  }
  EXPECT_EQ(emulation.is_active(), emulation.count(TileOperation::kBf16Product) > 0);
}

// Prompted tokens of `fast` attend in bf16 there, unless the cache is f32: one function as well,
// for any chunks, neighbours, workers and ranks.
TEST(SameBits, of_prompts_that_attend_in_bf16) {
  const TileEmulation emulation;
  if (!emulation.obstacle().empty()) GTEST_SKIP() << emulation.obstacle();
  const RandomModel model(Format::kQ8_0, Format::kF16, /*seed=*/11, /*window=*/30);
  const auto tokens = some_tokens(75, 9);
  const auto load = [&](size_t workers, std::vector<double> shares, const KvFormats& format) {
    return LoadedModel(model.path(), {.kernels = &amx_kernel_table(),
                                      .workers = workers,
                                      .shares = std::move(shares),
                                      .kv_format = format});
  };
  for (const KvFormats format : {KvFormats(KvFormat::kF16), KvFormats(KvFormat::kBf16),
                                 KvFormats(KvFormat::kQ4H, KvFormat::kQ4H)}) {
    LoadedModel alone = load(1, {1}, format);
    const LogitRows whole = alone.compute_alone(tokens, 128);
    for (const size_t chunk : {1U, 7U, 33U, 64U}) {
      SCOPED_TRACE("chunks of " + std::to_string(chunk));
      expect_same_bits(whole, alone.compute_alone(tokens, chunk));
    }
    LoadedModel several = load(3, {1, 1}, format);
    expect_same_bits(whole, several.compute_alone(tokens, 128));
    auto before = several.new_sequence(20);
    auto mine = several.new_sequence(tokens.size());
    const LogitRows among = several.compute(std::vector<LoadedModel::Piece>{
        {before, std::span(tokens).first(11)}, {mine, std::span(tokens).first(70)}});
    expect_same_bits({whole.begin(), whole.begin() + 70}, {among.begin() + 11, among.end()});
    // Beside a generated token, which attends in f32.
    const LogitRows mixed =
        several.compute(std::vector<LoadedModel::Piece>{{before, std::span(tokens).subspan(11, 1)},
                                                        {mine, std::span(tokens).last(5)}},
                        1);
    expect_same_bits({whole.end() - 5, whole.end()}, {mixed.begin() + 1, mixed.end()});
  }
}

// A gate by one kernel, or by one for each of its operations: also beside generated tokens, whose
// arithmetic is another, and pushed to another rank.
TEST(SameBits, of_prompts_whose_gates_are_one_kernel) {
  const TileEmulation emulation;
  if (!emulation.obstacle().empty()) GTEST_SKIP() << emulation.obstacle();
  KernelTable apart = amx_kernel_table();
  apart.gated_bf16 = {};
  const auto tokens = some_tokens(60, 10);
  const RandomModel quantized(Format::kQ4_0, Format::kQ8_0, /*seed=*/11);
  const RandomModel floats(Format::kBf16, Format::kQ8_0, /*seed=*/11);
  // Each expert gets more than a few rows.
  const RandomModel mixture(Format::kQ4_0, Format::kQ8_0, /*seed=*/11, {.count = 3, .used = 2});
  FamilyFile with_scales = family_file("llama");
  with_scales.format = Format::kQ8_0;
  with_scales.scales = true;
  const RandomFamily scaled(with_scales, /*seed=*/11);
  for (const Profile profile : {Profile::kExact, Profile::kFast}) {
    for (const std::string& model :
         {quantized.path(), floats.path(), mixture.path(), scaled.path()}) {
      const auto rows_of = [&](const KernelTable& table) {
        LoadedModel loaded(model,
                           {.kernels = &table, .workers = 2, .shares = {1, 1}, .profile = profile});
        auto first = loaded.new_sequence(40);
        auto second = loaded.new_sequence(40);
        LogitRows rows =
            loaded.compute(std::vector<LoadedModel::Piece>{{first, std::span(tokens).first(20)}});
        const LogitRows mixed = loaded.compute(
            std::vector<LoadedModel::Piece>{{first, std::span(tokens).subspan(20, 3)},
                                            {second, std::span(tokens).subspan(23, 37)}},
            3);
        rows.insert(rows.end(), mixed.begin(), mixed.end());
        return rows;
      };
      SCOPED_TRACE(fmt::format("{}, {}", profile_name(profile), model));
      expect_same_bits(rows_of(apart), rows_of(amx_kernel_table()));
    }
  }
}

// A preempted sequence computes its generated tokens again: many at once, beside others, with the
// arithmetic of generated tokens, which here differs from that of prompts on every machine.
void expect_same_bits_one_by_one_or_many_at_once(RandomModel::Experts experts) {
  SCOPED_TRACE(fmt::format("{} of {} experts", experts.used, experts.count));
  const RandomModel model(Format::kQ8_0, Format::kQ4_0, /*seed=*/11, experts);
  ProductFormTable forms = own_product_forms();
  for (const Format format : {Format::kQ8_0, Format::kQ4_0}) {
    forms[static_cast<size_t>(format)].prompted = ActivationForm::kBf16;
  }
  const auto tokens = some_tokens(330, 7);
  constexpr size_t kPrompt = 30;
  LoadedModel loaded(model.path(), {.workers = 2, .forms = forms, .batch_tokens = 512});
  // The logits after the prompt, and those of what follows it in passes of `count`.
  const auto rows_of = [&](size_t count, bool generated) {
    auto sequence = loaded.new_sequence(tokens.size());
    loaded.set_generated(false);
    LogitRows rows = loaded.compute(
        std::vector<LoadedModel::Piece>{{sequence, std::span(tokens).first(kPrompt)}});
    loaded.set_generated(generated);
    for (size_t begin = kPrompt; begin < tokens.size(); begin += count) {
      const auto part = std::span(tokens).subspan(begin, std::min(count, tokens.size() - begin));
      for (auto& row : loaded.compute(std::vector<LoadedModel::Piece>{{sequence, part}})) {
        rows.push_back(std::move(row));
      }
    }
    return rows;
  };
  const LogitRows one_by_one = rows_of(1, true);
  expect_same_bits(one_by_one, rows_of(7, true));
  expect_same_bits(one_by_one, rows_of(300, true));
  const LogitRows prompted = rows_of(300, false);
  EXPECT_NE(one_by_one.back(), prompted.back());
}

TEST(SameBits, generated_one_by_one_or_many_at_once) {
  expect_same_bits_one_by_one_or_many_at_once({});
  // More rows of each expert than are multiplied at once.
  expect_same_bits_one_by_one_or_many_at_once({.count = 2, .used = 2});
  // Numbers of rows that are no multiple of anything.
  expect_same_bits_one_by_one_or_many_at_once({.count = 9, .used = 2});
}

// The two profiles give different bits, so testing both is not testing one twice.
TEST(SameBits, are_not_those_of_the_other_profile) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/11);
  const auto tokens = some_tokens(8, 5);
  // With tiles prompts are the same in both.
  const KernelTable* table = supported_kernel_tables().front();
  LoadedModel exact(model.path(), {.kernels = table, .profile = Profile::kExact});
  LoadedModel fast(model.path(), {.kernels = table, .profile = Profile::kFast});
  EXPECT_NE(exact.compute_alone(tokens, 8), fast.compute_alone(tokens, 8));
}

// Long sequences, whose keys are taken in chunks by several workers when they are alone.
TEST(SameBits, over_many_chunks_of_keys) {
  for (const uint32_t window : {0U, 100U, 300U}) {
    const RandomModel model(Format::kQ8_0, Format::kF16, /*seed=*/17, window);
    const auto tokens = some_tokens(500, 6);
    LogitRows whole;
    for (const size_t workers : {1U, 2U, 3U}) {
      SCOPED_TRACE(fmt::format("window {}, {} workers", window, workers));
      LoadedModel loaded(model.path(), {.workers = workers, .shares = {1, 1}, .batch_tokens = 512});
      const LogitRows rows = loaded.compute_alone(tokens, 512);
      if (whole.empty()) whole = rows;
      expect_same_bits(whole, rows);
      auto first = loaded.new_sequence(500);
      auto second = loaded.new_sequence(500);
      loaded.compute(std::vector<LoadedModel::Piece>{{first, std::span(tokens).first(490)},
                                                     {second, std::span(tokens).first(11)}});
      for (size_t token = 490; token < 500; ++token) {
        const LogitRows both = loaded.compute(
            std::vector<LoadedModel::Piece>{{first, std::span(tokens).subspan(token, 1)},
                                            {second, std::span(tokens).subspan(token - 479, 1)}});
        expect_same_bits({whole[token], whole[token - 479]}, both);
      }
      // Beside a prompt.
      first.length = 499;
      auto third = loaded.new_sequence(40);
      const LogitRows mixed = loaded.compute(std::vector<LoadedModel::Piece>{
          {first, std::span(tokens).last(1)}, {third, std::span(tokens).first(40)}});
      expect_same_bits({whole[499], whole[0], whole[39]}, {mixed[0], mixed[1], mixed[40]});
    }
  }
}

// Two layers of a window of 100: 199 tokens on, a token is out of reach.
TEST(SameBits, whatever_lies_beyond_the_window) {
  const RandomModel model(Format::kF32, Format::kF32, /*seed=*/17, /*window=*/100);
  auto tokens = some_tokens(260, 6);
  LoadedModel loaded(model.path(), {.batch_tokens = 512});
  const LogitRows before = loaded.compute_alone(tokens, 512);
  tokens[0] = (tokens[0] + 1) % 128;
  const LogitRows after = loaded.compute_alone(tokens, 512);
  EXPECT_NE(before[198], after[198]);
  expect_same_bits({before.begin() + 199, before.end()}, {after.begin() + 199, after.end()});
}

}  // namespace
}  // namespace lockstep
