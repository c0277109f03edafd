#include "tests/engine/runtime/random_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/model/gguf_writer.h"

namespace lockstep {
namespace {

constexpr size_t kColumns = 256;
constexpr size_t kKvColumns = 128;
constexpr size_t kFeedForward = 512;
constexpr float kUnitGain = 1.0F / 16;  // 1 / sqrt(kColumns)
constexpr size_t kVocabulary = 150;     // no multiple of a panel's rows

class Builder {
 public:
  Builder(uint64_t seed, RandomModel::Values values) : random_(seed), values_(values) {}

  void matrix(const std::string& name, Format format, size_t rows, size_t columns) {
    const auto bytes = weights(format, rows, columns);
    if (values_ == RandomModel::Values::kAsTheyAre) {
      writer_.add_tensor(name, format, {columns, rows}, bytes);
      return;
    }
    std::vector<float> values(rows * columns);
    traits(format).dequantize(bytes.data(), values.size(), values.data());
    writer_.add_tensor(name, {columns, rows}, values);
  }
  void experts(const std::string& name, Format format, size_t rows, size_t columns, size_t count) {
    writer_.add_tensor(name, format, {columns, rows, count},
                       weights(format, rows * count, columns));
  }
  // Scores far enough apart that rounding changes no choice; where there is none to make, near
  // enough that every expert counts.
  void router(const std::string& name, size_t count, bool chooses) {
    std::normal_distribution<float> values(0, chooses ? 2 : kUnitGain);
    std::vector<float> weights(count * kColumns);
    for (float& weight : weights) weight = values(random_);
    writer_.add_tensor(name, {kColumns, count}, weights);
  }
  void norm(const std::string& name) {
    writer_.add_tensor(name, {kColumns}, std::vector<float>(kColumns, 1.0F));
  }
  test::GgufWriter& writer() { return writer_; }

 private:
  // Random rows. Scales of quantized formats make outputs about as large as inputs: otherwise
  // scores of attention are so far apart that a rounding decides which key a token sees.
  std::vector<std::byte> weights(Format format, size_t rows, size_t columns) {
    auto bytes = random_rows(format, rows, columns, random_);
    std::vector<float> values(rows * columns);
    traits(format).dequantize(bytes.data(), values.size(), values.data());
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    const double size = std::sqrt(squares / static_cast<double>(values.size()));
    // As random_rows() draws them: 0.02, and now and then none.
    std::normal_distribution<float> scales(0, 0.02F * kUnitGain / static_cast<float>(size));
    set_halves(
        format, [&] { return random_() % 16 == 0 ? 0.0F : scales(random_); }, bytes);
    return bytes;
  }

  RandomEngine random_;
  RandomModel::Values values_;
  test::GgufWriter writer_;
};

void add_metadata(test::GgufWriter& writer, uint32_t window, uint32_t layers) {
  if (window > 0) writer.add("llama.attention.sliding_window", window);
  writer.add("general.architecture", std::string("llama"));
  writer.add("llama.block_count", layers);
  writer.add("llama.context_length", uint32_t{512});
  writer.add("llama.embedding_length", static_cast<uint32_t>(kColumns));
  writer.add("llama.feed_forward_length", static_cast<uint32_t>(kFeedForward));
  writer.add("llama.attention.head_count", uint32_t{4});
  writer.add("llama.attention.head_count_kv", uint32_t{2});
  writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
}

}  // namespace

RandomModel::RandomModel(Format format, Format others, uint64_t seed, uint32_t window,
                         uint32_t layers, Experts experts, Values values)
    : path_(std::filesystem::temp_directory_path() /
            fmt::format("lockstep-{}-{}-{}-w{}-{}x{}x{}-{}-{}.gguf", traits(format).name,
                        traits(others).name, seed, window, experts.count, experts.used,
                        experts.feed_forward, values == Values::kDequantized ? "values" : "rows",
                        getpid())) {
  Builder builder(seed, values);
  add_metadata(builder.writer(), window, layers);
  if (experts.count > 0) {
    builder.writer().add("llama.expert_count", experts.count);
    builder.writer().add("llama.expert_used_count", experts.used);
    builder.writer().add("llama.expert_feed_forward_length", experts.feed_forward);
  }
  builder.matrix("token_embd.weight", format, kVocabulary, kColumns);
  builder.norm("output_norm.weight");
  for (size_t layer = 0; layer < layers; ++layer) {
    const std::string block = fmt::format("blk.{}.", layer);
    builder.norm(block + "attn_norm.weight");
    builder.norm(block + "ffn_norm.weight");
    builder.matrix(block + "attn_q.weight", format, kColumns, kColumns);
    builder.matrix(block + "attn_k.weight", format, kKvColumns, kColumns);
    builder.matrix(block + "attn_v.weight", others, kKvColumns, kColumns);
    builder.matrix(block + "attn_output.weight", format, kColumns, kColumns);
    if (experts.count > 0) {
      const size_t count = experts.count;
      const size_t wide = experts.feed_forward;
      builder.router(block + "ffn_gate_inp.weight", count, experts.used < count);
      builder.experts(block + "ffn_gate_exps.weight", format, wide, kColumns, count);
      builder.experts(block + "ffn_up_exps.weight", others, wide, kColumns, count);
      builder.experts(block + "ffn_down_exps.weight", others, kColumns, wide, count);
      continue;
    }
    builder.matrix(block + "ffn_gate.weight", format, kFeedForward, kColumns);
    builder.matrix(block + "ffn_up.weight", format, kFeedForward, kColumns);
    builder.matrix(block + "ffn_down.weight", others, kColumns, kFeedForward);
  }
  builder.writer().write(path_);
}

RandomModel::~RandomModel() {
  std::filesystem::remove(path_);
}

}  // namespace lockstep
