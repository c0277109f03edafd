// Invariant: the logits of a token have the same bits whatever the instruction set, the number of
// workers, the chunks its prompt came in, and its neighbours in the batch.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_model.h"

namespace lockstep {
namespace {

const std::string kFolder = std::string(LOCKSTEP_SOURCE_DIR) + "/tests/fixtures/logits/";

// Every format, two mixtures, and files of each architecture.
class Models {
 public:
  Models() {
    for (const FormatTraits& format : all_formats()) add(format.format, format.format);
    add(Format::kQ4_K, Format::kQ6_K);
    add(Format::kQ8_0, Format::kF16);
    for (const char* name : {"llama-gqa-f16", "qwen3-gqa-f32", "qwen2-mha-f16"}) {
      paths_.push_back(kFolder + name + ".gguf");
    }
  }

  const std::vector<std::string>& paths() const { return paths_; }

 private:
  void add(Format format, Format others) {
    made_.push_back(std::make_unique<RandomModel>(format, others, /*seed=*/11));
    paths_.push_back(made_.back()->path());
  }

  std::vector<std::unique_ptr<RandomModel>> made_;
  std::vector<std::string> paths_;
};

TEST(SameBits, on_every_instruction_set_and_for_any_number_of_workers) {
  const Models models;
  const auto tokens = some_tokens(90, 1);
  for (const std::string& model : models.paths()) {
    SCOPED_TRACE(model);
    LogitRows first;
    for (const KernelTable* table : supported_kernel_tables()) {
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
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16, KvFormat::kQ8_0}) {
    for (const std::string& model : models.paths()) {
      SCOPED_TRACE(model);
      if (!kv_format_fits(format, LoadedModel(model, {}).plan().kv.head_dimension)) continue;
      LoadedModel loaded(model, {.workers = 2, .kv_format = format});
      const LogitRows whole = loaded.compute_alone(tokens, 128);
      for (const size_t chunk : {1U, 7U, 32U, 64U, 65U}) {
        SCOPED_TRACE("chunks of " + std::to_string(chunk));
        expect_same_bits(whole, loaded.compute_alone(tokens, chunk));
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

}  // namespace
}  // namespace lockstep
