#include "tests/engine/runtime/reference_model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "engine/model/gguf_file.h"
#include "engine/tensor/format.h"
#include "tests/engine/runtime/reference_walk.h"
#include "tests/engine/runtime/value_or_throw.h"

namespace lockstep {
namespace {

double worst_difference(const ReferenceRows& a, const ReferenceRows& b) {
  double worst = 0;
  for (size_t row = 0; row < a.size(); ++row) {
    for (size_t i = 0; i < a[row].size(); ++i) {
      worst = std::max(worst, std::abs(a[row][i] - b[row][i]));
    }
  }
  return worst;
}

// int8 in blocks loses more than bf16 does.
ActivationForm coarser(ActivationForm a, ActivationForm b) {
  for (const ActivationForm form :
       {ActivationForm::kQ8, ActivationForm::kBf16, ActivationForm::kBf16Dots}) {
    if (a == form || b == form) return form;
  }
  return ActivationForm::kF32;
}

}  // namespace

Roundings roundings_of(const KernelTable& table, Profile profile, const KvFormats& kv_format,
                       bool generated) {
  Roundings roundings{.kv_format = kv_format};
  const ProductFormTable forms = product_forms(profile, table);
  for (size_t format = 0; format < kFormatCount; ++format) {
    roundings.inputs[format] = generated ? forms[format].generated : forms[format].prompted;
    // Weights of less than 16 bits, and F16's in two parts, are exact in bf16 but for a factor.
    if (roundings.inputs[format] != ActivationForm::kF32 &&
        roundings.inputs[format] != ActivationForm::kQ8) {
      roundings.bf16_weights = true;
    }
  }
  const bool bf16 =
      !generated && prompt_attention(profile, table, kv_format) == AttentionForm::kBf16;
  if (bf16) roundings.attention = std::ldexp(1.0, -8);
  return roundings;
}

Roundings gpu_roundings(KvFormat kv_format) {
  Roundings roundings{.bf16_weights = true, .kv_format = kv_format};
  const ProductFormTable forms = gpu_product_forms();
  for (size_t format = 0; format < kFormatCount; ++format) {
    roundings.inputs[format] = forms[format].prompted;
  }
  if (kv_format == KvFormat::kF16) roundings.attention = std::ldexp(1.0, -11);
  if (kv_format == KvFormat::kBf16 || kv_format == KvFormat::kQ8_0) {
    roundings.attention = std::ldexp(1.0, -8);
  }
  return roundings;
}

Roundings joined(const Roundings& a, const Roundings& b) {
  Roundings both = a;
  for (size_t format = 0; format < kFormatCount; ++format) {
    both.inputs[format] = coarser(a.inputs[format], b.inputs[format]);
  }
  both.bf16_weights = a.bf16_weights || b.bf16_weights;
  both.attention = std::max(a.attention, b.attention);
  both.bf16_sums = a.bf16_sums || b.bf16_sums;
  both.ranks = std::max(a.ranks, b.ranks);
  return both;
}

std::vector<float> read_weight(const GgufFile& file, const Weight& weight) {
  const GgufTensor* tensor = file.find_tensor(weight.name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + weight.name);
  const size_t row = row_bytes(weight.format, weight.columns);
  const size_t unit = weight.is_matrix ? row : traits(weight.format).block_bytes;
  std::vector<std::byte> bytes(weight.rows * row);
  value_or_throw(
      file.readers()[tensor->part].read(tensor->offset + weight.first_row * unit, bytes));
  std::vector<float> values(weight.rows * weight.columns);
  traits(weight.format).dequantize(bytes.data(), values.size(), values.data());
  return values;
}

ReferenceModel::ReferenceModel(const std::string& path, std::vector<TokenId> tokens,
                               size_t context_tokens)
    : tokens_(std::move(tokens)) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  model_ = value_or_throw(build_model({.file = file, .context_tokens = context_tokens}));
  compute(file);
}

ReferenceModel::ReferenceModel(const std::string& path, Model model, std::vector<TokenId> tokens,
                               std::vector<float> given_rows)
    : model_(std::move(model)), tokens_(std::move(tokens)), given_rows_(std::move(given_rows)) {
  compute(value_or_throw(GgufFile::open(path)));
}

ReferenceModel::ReferenceModel(const GgufFile& file, Model model, std::vector<TokenId> tokens,
                               std::vector<float> given_rows)
    : model_(std::move(model)), tokens_(std::move(tokens)), given_rows_(std::move(given_rows)) {
  compute(file);
}

void ReferenceModel::compute(const GgufFile& file) {
  for (const Weight& weight : model_.graph.weights()) {
    weights_.push_back(read_weight(file, weight));
  }
  const size_t columns = model_.graph.given_columns();
  for (size_t index = 0; index < tokens_.size() && given_rows_.size() < tokens_.size() * columns;
       ++index) {
    const std::vector<float> row = given_row(tokens_[index], index, columns);
    given_rows_.insert(given_rows_.end(), row.begin(), row.end());
  }
  const Roundings none;
  ReferenceWalk walk(model_.graph, weights_, tokens_, given_rows_, none, /*draw=*/0);
  logits_ = walk.run();
  hidden_ = walk.hidden();
}

ReferenceModel::Worst ReferenceModel::worst_of_draws(const Roundings& roundings) const {
  Worst worst;
  for (uint64_t draw = 1; draw <= kDraws; ++draw) {
    ReferenceWalk walk(model_.graph, weights_, tokens_, given_rows_, roundings, draw);
    worst.logits = std::max(worst.logits, worst_difference(walk.run(), logits_));
    worst.hidden = std::max(worst.hidden, worst_difference(walk.hidden(), hidden_));
  }
  return worst;
}

double ReferenceModel::bound(const Roundings& roundings) const {
  return kTimes * worst_of_draws(roundings).logits;
}

double ReferenceModel::hidden_bound(const Roundings& roundings) const {
  return kTimes * worst_of_draws(roundings).hidden;
}

double worst_difference(const LogitRows& rows, const ReferenceRows& reference) {
  double worst = 0;
  EXPECT_EQ(rows.size(), reference.size());
  for (size_t row = 0; row < std::min(rows.size(), reference.size()); ++row) {
    EXPECT_EQ(rows[row].size(), reference[row].size());
    for (size_t i = 0; i < rows[row].size(); ++i) {
      const double difference = double{rows[row][i]} - reference[row][i];
      EXPECT_TRUE(std::isfinite(difference)) << "row " << row << ", column " << i;
      worst = std::max(worst, std::abs(difference));
    }
  }
  return worst;
}

void leave_out(size_t row, LogitRows& rows, const ReferenceRows& reference) {
  rows.at(row).assign(reference.at(row).begin(), reference.at(row).end());
}

void expect_near(const LogitRows& rows, const ReferenceModel& reference,
                 const Roundings& roundings) {
  EXPECT_LE(worst_difference(rows, reference.logits()), reference.bound(roundings));
}

}  // namespace lockstep
