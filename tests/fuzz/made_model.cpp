#include "tests/fuzz/made_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "engine/model/architecture.h"

namespace lockstep {
namespace {

constexpr uint64_t kDataBytesMax = 64 * 1024;  // of a tensor that was changed

// After "llama.", say; some only matter where another is set.
constexpr std::string_view kKeys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "nextn_predict_layers",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_weights_norm",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

constexpr std::string_view kTensorNames[] = {
    "output.weight",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    "blk.0.attn_qkv.weight",
    "blk.0.attn_q.bias",
    "blk.0.attn_output.bias",
    "blk.0.attn_q_norm.weight",
    "blk.0.ffn_gate_up_exps.weight",
    "blk.0.attn_rot_embd.weight",
    "blk.1.attn_norm.weight",
    "v.patch_embd.weight",
};

constexpr uint64_t kEdges[] = {0,         1,         2,          3,         31,        32,
                               64,        127,       128,        255,       256,       1023,
                               1U << 16U, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};

uint64_t any_number(FuzzedDataProvider& input) {
  return input.ConsumeBool() ? input.PickValueInArray(kEdges)
                             : input.ConsumeIntegralInRange<uint64_t>(0, 300);
}

uint64_t bytes_of(Format format, const std::vector<uint64_t>& dimensions) {
  if (dimensions.front() % traits(format).block_elements != 0) return 0;
  uint64_t bytes = row_bytes(format, dimensions.front());
  for (size_t index = 1; index < dimensions.size(); ++index) {
    if (bytes > kDataBytesMax || dimensions[index] > kDataBytesMax) return kDataBytesMax;
    bytes *= dimensions[index];
  }
  return std::min(bytes, kDataBytesMax);
}

std::vector<std::byte> pattern(uint64_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t index = 0; index < bytes; ++index) data[index] = std::byte(index * 7 % 31);
  return data;
}

}  // namespace

MadeModel::MadeModel(FuzzedDataProvider& input) {
  const auto architectures = all_architectures();
  architecture_ =
      architectures[input.ConsumeIntegralInRange<size_t>(0, architectures.size() - 1)].name;
  const auto formats = all_formats();
  format_ = formats[input.ConsumeIntegralInRange<size_t>(0, formats.size() - 1)].format;
  const bool is_mixture =
      architecture_.ends_with("moe") || (architecture_ == "llama" && input.ConsumeBool());
  const uint64_t unit = traits(format_).block_elements;
  const auto wide = [&] {
    return std::max<uint64_t>(unit, 32) * input.ConsumeIntegralInRange<uint64_t>(1, 2);
  };
  columns_ = wide();
  feed_forward_ = wide();
  kv_heads_ = input.ConsumeIntegralInRange<uint64_t>(1, 3);
  heads_ = kv_heads_ * input.ConsumeIntegralInRange<uint64_t>(1, 3);
  // The heads' output is as wide as a row of attn_output, a whole number of blocks.
  head_dimension_ = unit > 1 ? unit : 2 * input.ConsumeIntegralInRange<uint64_t>(1, 20);
  experts_ = is_mixture ? input.ConsumeIntegralInRange<uint64_t>(1, 5) : 0;
  add_metadata(architecture_, input);
  const uint64_t vocabulary = input.ConsumeIntegralInRange<uint64_t>(1, 40);
  add_matrix("token_embd.weight", columns_, vocabulary);
  if (input.ConsumeBool()) add_matrix("output.weight", columns_, vocabulary);
  add_vector("output_norm.weight", columns_);
  const auto layers = input.ConsumeIntegralInRange<uint32_t>(1, 2);
  metadata_[architecture_ + ".block_count"] = architecture_ == "baichuan" ? 32U : layers;
  const bool has_biases = architecture_.starts_with("qwen2") || input.ConsumeBool();
  const bool has_norms = architecture_.starts_with("qwen3") || input.ConsumeBool();
  for (uint64_t layer = 0; layer < layers; ++layer) add_layer(layer, has_biases, has_norms);
  const int changes = input.ConsumeIntegralInRange(0, 8);
  for (int count = 0; count < changes && input.remaining_bytes() > 0; ++count) change(input);
}

void MadeModel::add_matrix(const std::string& name, uint64_t columns, uint64_t rows,
                           uint64_t depth) {
  std::vector<uint64_t> dimensions = {columns, rows};
  if (depth > 1) dimensions.push_back(depth);
  auto data = pattern(row_bytes(format_, columns) * rows * depth);
  tensors_.push_back({name, traits(format_).ggml_type, std::move(dimensions), std::move(data),
                      std::nullopt, std::nullopt});
}

void MadeModel::add_vector(const std::string& name, uint64_t columns) {
  tensors_.push_back({name,
                      traits(Format::kF32).ggml_type,
                      {columns},
                      pattern(columns * sizeof(float)),
                      std::nullopt,
                      std::nullopt});
}

void MadeModel::add_metadata(const std::string& architecture, FuzzedDataProvider& input) {
  const std::string prefix = architecture + ".";
  const auto number = [](uint64_t value) { return static_cast<uint32_t>(value); };
  metadata_["general.architecture"] = architecture;
  metadata_[prefix + "context_length"] = uint32_t{128};
  metadata_[prefix + "embedding_length"] = number(columns_);
  metadata_[prefix + "feed_forward_length"] = number(feed_forward_);
  metadata_[prefix + "attention.head_count"] = number(heads_);
  metadata_[prefix + "attention.head_count_kv"] = number(kv_heads_);
  metadata_[prefix + "attention.key_length"] = number(head_dimension_);
  metadata_[prefix + "attention.layer_norm_rms_epsilon"] = 1e-5F;
  if (experts_ == 0) return;
  metadata_[prefix + "expert_count"] = number(experts_);
  metadata_[prefix + "expert_used_count"] =
      number(input.ConsumeIntegralInRange<uint64_t>(1, experts_));
  metadata_[prefix + "expert_feed_forward_length"] = number(feed_forward_);
}

void MadeModel::add_layer(uint64_t layer, bool has_biases, bool has_norms) {
  const std::string block = fmt::format("blk.{}.", layer);
  const uint64_t query_columns = heads_ * head_dimension_;
  const uint64_t kv_columns = kv_heads_ * head_dimension_;
  add_vector(block + "attn_norm.weight", columns_);
  add_vector(block + "ffn_norm.weight", columns_);
  add_matrix(block + "attn_q.weight", columns_, query_columns);
  add_matrix(block + "attn_k.weight", columns_, kv_columns);
  add_matrix(block + "attn_v.weight", columns_, kv_columns);
  add_matrix(block + "attn_output.weight", query_columns, columns_);
  if (has_biases) {
    add_vector(block + "attn_q.bias", query_columns);
    add_vector(block + "attn_k.bias", kv_columns);
    add_vector(block + "attn_v.bias", kv_columns);
  }
  if (has_norms) {
    add_vector(block + "attn_q_norm.weight", head_dimension_);
    add_vector(block + "attn_k_norm.weight", head_dimension_);
  }
  const std::string kind = experts_ > 0 ? "_exps.weight" : ".weight";
  const uint64_t depth = std::max<uint64_t>(experts_, 1);
  if (experts_ > 0) add_matrix(block + "ffn_gate_inp.weight", columns_, experts_);
  add_matrix(block + "ffn_gate" + kind, columns_, feed_forward_, depth);
  add_matrix(block + "ffn_up" + kind, columns_, feed_forward_, depth);
  add_matrix(block + "ffn_down" + kind, feed_forward_, columns_, depth);
}

void MadeModel::change(FuzzedDataProvider& input) {
  if (input.ConsumeBool()) {
    change_key(input);
  } else {
    change_tensor(input);
  }
}

std::string MadeModel::any_key(FuzzedDataProvider& input) const {
  return fmt::format("{}.{}", architecture_, input.PickValueInArray(kKeys));
}

void MadeModel::change_key(FuzzedDataProvider& input) {
  const std::string key = any_key(input);
  switch (input.ConsumeIntegralInRange(0, 6)) {
    case 0:
      metadata_.erase(key);
      return;
    case 1:
      metadata_[key] = any_number(input);
      return;
    case 2:
      metadata_[key] = static_cast<int32_t>(any_number(input));
      return;
    case 3:
      metadata_[key] = input.ConsumeFloatingPoint<float>();
      return;
    case 4:
      metadata_[key] = input.ConsumeBool();
      return;
    case 5:
      metadata_[key] =
          std::string(input.PickValueInArray({"none", "linear", "yarn", "longrope", ""}));
      return;
    default:
      metadata_[key] = static_cast<uint32_t>(any_number(input));
      return;
  }
}

void MadeModel::change_tensor(FuzzedDataProvider& input) {
  if (tensors_.empty()) return;
  auto& tensor = tensors_[input.ConsumeIntegralInRange<size_t>(0, tensors_.size() - 1)];
  const auto formats = all_formats();
  switch (input.ConsumeIntegralInRange(0, 7)) {
    case 0:
      tensor.name = input.PickValueInArray(kTensorNames);
      return;
    case 1:
      tensors_.push_back(tensor);
      tensors_.back().name = input.PickValueInArray(kTensorNames);
      return;
    case 2: {
      const auto& row = formats[input.ConsumeIntegralInRange<size_t>(0, formats.size() - 1)];
      tensor.ggml_type = row.ggml_type;
      tensor.data = pattern(bytes_of(row.format, tensor.dimensions));
      return;
    }
    case 3: {
      tensor.dimensions[input.ConsumeIntegralInRange<size_t>(0, tensor.dimensions.size() - 1)] =
          any_number(input);
      const auto format = format_of_ggml_type(tensor.ggml_type).value_or(Format::kF32);
      tensor.data = pattern(bytes_of(format, tensor.dimensions));
      return;
    }
    case 4:
      tensor.offset = any_number(input);
      return;
    case 5:
      tensor.ggml_type = input.ConsumeIntegral<uint8_t>();
      return;
    case 6:
      std::swap(tensor, tensors_.back());
      tensors_.pop_back();
      return;
    default:  // infinite and no numbers among them
      std::ranges::fill(tensor.data, std::byte{input.ConsumeIntegral<uint8_t>()});
      return;
  }
}

std::vector<std::byte> MadeModel::bytes() const {
  test::GgufWriter writer;
  for (const auto& [key, value] : metadata_) {
    std::visit([&](const auto& each) { writer.add(key, each); }, value);
  }
  writer.tensors = tensors_;
  return writer.bytes();
}

}  // namespace lockstep
