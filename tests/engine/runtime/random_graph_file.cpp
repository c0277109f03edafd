// The weights of graphs made at random, in a file.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_graph.h"
#include "tests/engine/runtime/reference_model.h"

namespace lockstep {
namespace {

// Gives all blocks scales of one size, with which the values have this deviation.
void set_deviation(const Weight& weight, double deviation, RandomEngine& random,
                   std::span<std::byte> bytes) {
  set_halves(weight.format, 1.0F, bytes);
  std::vector<float> values(weight.rows * weight.columns);
  traits(weight.format).dequantize(bytes.data(), values.size(), values.data());
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  const double held = std::sqrt(squares / static_cast<double>(values.size()));
  const auto scale = static_cast<float>(deviation / held);
  set_halves(
      weight.format, [&] { return random() % 2 == 0 ? scale : -scale; }, bytes);
}

std::vector<std::byte> random_matrix(const Weight& weight, RandomEngine& random) {
  const double deviation = 1 / std::sqrt(static_cast<double>(weight.columns));
  if (weight.format != Format::kF32) {
    auto bytes = random_rows(weight.format, weight.rows, weight.columns, random);
    if (traits(weight.format).is_quantized()) set_deviation(weight, deviation, random, bytes);
    return bytes;
  }
  std::normal_distribution<double> values(0, deviation);
  std::vector<float> floats(weight.rows * weight.columns);
  for (float& value : floats) value = static_cast<float>(values(random));
  const auto bytes = std::as_bytes(std::span(floats));
  return {bytes.begin(), bytes.end()};
}

// Biases far apart, in any order.
std::vector<float> random_choice(size_t count, RandomEngine& random) {
  std::vector<float> biases;
  for (size_t expert = 0; expert < count; ++expert) {
    biases.push_back(std::ldexp(50.0F, static_cast<int>(expert)));  // no two sums of two are near
  }
  std::ranges::shuffle(biases, random);
  return biases;
}

}  // namespace

RandomGraphFile::RandomGraphFile(uint64_t seed, Graph (*make)(uint64_t))
    : seed_(seed), make_(make) {
  static std::atomic<uint32_t> count = 0;
  path_ = std::filesystem::temp_directory_path() /
          fmt::format("lockstep-graph-{}-{}.gguf", getpid(), count.fetch_add(1));
  RandomEngine random(seed);
  test::GgufWriter writer;
  writer.add("general.architecture", std::string("none"));
  const Graph graph = make_(seed);
  for (const Weight& weight : graph.weights()) {
    if (weight.is_matrix) {
      writer.add_tensor(weight.name, weight.format, {weight.columns, weight.rows},
                        random_matrix(weight, random));
      continue;
    }
    if (weight.name.starts_with("choice")) {
      writer.add_tensor(weight.name, {weight.columns}, random_choice(weight.columns, random));
      continue;
    }
    const bool is_norm = weight.name.starts_with("norm");
    const bool is_decay = weight.name.starts_with("decay");
    std::normal_distribution<double> values(is_norm ? 1 : 0, is_norm ? 0.2 : 0.5);
    std::vector<float> floats(weight.columns);
    for (float& value : floats) value = static_cast<float>(values(random));
    if (is_decay) std::ranges::for_each(floats, [](float& value) { value = -std::abs(value); });
    writer.add_tensor(weight.name, {floats.size()}, floats);
  }
  writer.write(path_);
}

RandomGraphFile::~RandomGraphFile() {
  std::filesystem::remove(path_);
}

Model RandomGraphFile::model() const {
  Model model;
  model.graph = make_(seed_);
  model.vocabulary_size = kGraphVocabulary;
  return model;
}

void expect_what_float64_computes(const RandomGraphFile& file) {
  const auto tokens = some_tokens(20, 5);
  const ReferenceModel reference(file.path(), file.model(), tokens);
  for (const Profile profile : {Profile::kExact, Profile::kFast}) {
    for (const KernelTable* table : supported_kernel_tables()) {
      SCOPED_TRACE(fmt::format("{} {}", table->name, profile_name(profile)));
      LoadedModel model(file.path(), file.model(), {.kernels = table, .profile = profile});
      expect_near(model.compute_alone(tokens, 128), reference,
                  roundings_of(*table, profile, KvFormat::kF32));
    }
  }
}

}  // namespace lockstep
