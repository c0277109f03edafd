#include "tests/engine/kernels/paged_sequence.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <string_view>

#include "engine/tensor/format.h"

namespace lockstep {
namespace {

// Large pages of memory where there are any, as a rank's arenas have.
constexpr std::align_val_t kAlignment{size_t{2} << 20U};

bool has_scales(KvFormat format) {
  return format == KvFormat::kQ8_0 || format == KvFormat::kQ4_0 || format == KvFormat::kQ4H;
}

void write_element(KvFormat format, std::byte* block, size_t index, float value) {
  if (format == KvFormat::kF32) {
    std::memcpy(block + index * sizeof value, &value, sizeof value);
    return;
  }
  const uint16_t bits = format == KvFormat::kF16 ? float_to_half(value) : float_to_bf16(value);
  std::memcpy(block + index * sizeof bits, &bits, sizeof bits);
}

// A stored block is stored again as it is: its farthest element is 127 or -8 times the scale.
void write_quant(KvFormat format, int8_t quant, const KvQuantPlace& place, std::byte* block) {
  if (format == KvFormat::kQ8_0) {
    block[place.byte] = static_cast<std::byte>(quant);
    return;
  }
  const auto others = static_cast<std::byte>(place.bit == 0 ? 0xF0U : 0x0FU);
  const auto bits = static_cast<std::byte>(static_cast<unsigned>(quant + 8) << place.bit);
  block[place.byte] = (block[place.byte] & others) | bits;
}

}  // namespace

std::string format_name(const KvFormats& format) {
  constexpr std::string_view kNames[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_h"};
  const std::string keys(kNames[static_cast<size_t>(format.keys)]);
  if (format.are(format.keys)) return keys;
  return keys + "/" + std::string(kNames[static_cast<size_t>(format.values)]);
}

size_t fitting_dimension(const KvFormats& format, size_t head_dimension) {
  while (!kv_format_fits(format.keys, head_dimension) ||
         !kv_format_fits(format.values, head_dimension)) {
    ++head_dimension;
  }
  return head_dimension;
}

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

KvQuants quantize_kv(KvFormat format, const float* values) {
  const bool wide = format == KvFormat::kQ8_0;
  float farthest = -0.0F;  // whose scale is 0, not -0
  bool finite = true;
  for (size_t i = 0; i < kKvBlockDimensions; ++i) {
    const float value = values[i];
    const bool farther = std::fabs(value) > std::fabs(farthest) ||
                         (std::fabs(value) == std::fabs(farthest) && value < farthest);
    if (farther) farthest = value;
    finite = finite && std::isfinite(value);
  }
  KvQuants result = {};
  if (!finite) {
    result.scale = float_to_half(std::numeric_limits<float>::quiet_NaN());
    return result;
  }
  const float exact = wide ? std::fabs(farthest) / 127.0F : farthest / -8.0F;
  result.scale = float_to_half(std::clamp(exact, -65504.0F, 65504.0F));
  const float scale = half_to_float(result.scale);
  for (size_t i = 0; i < kKvBlockDimensions && scale != 0.0F; ++i) {
    const float rounded = std::nearbyint(values[i] / scale);
    result.quants[i] = static_cast<int8_t>(wide ? std::clamp(rounded, -127.0F, 127.0F)
                                                : std::clamp(rounded, -8.0F, 7.0F));
  }
  return result;
}

KvQuantPlace place_of_key(KvFormat format, size_t dimension, size_t slot) {
  if (format == KvFormat::kQ8_0) return {dimension * kPageTokens + slot, 0};
  const size_t row = dimension / 32 * 16 + dimension % 16;
  return {row * kPageTokens + slot, dimension % 32 < 16 ? 0U : 4U};
}

KvQuantPlace place_of_value(KvFormat format, size_t head_dimension, size_t dimension, size_t slot) {
  if (format == KvFormat::kQ8_0) return {slot * head_dimension + dimension, 0};
  return {slot * (head_dimension / 2) + dimension / 32 * 16 + dimension % 16,
          dimension % 32 < 16 ? 0U : 4U};
}

size_t kv_quant_bytes(KvFormat format, size_t head_dimension) {
  return head_dimension * kPageTokens / (format == KvFormat::kQ8_0 ? 1 : 2);
}

void store_row(KvFormat format, std::span<float> row) {
  switch (format) {
    case KvFormat::kF32:
      return;
    case KvFormat::kF16:
      for (float& value : row) value = half_to_float(float_to_half(value));
      return;
    case KvFormat::kBf16:
      for (float& value : row) value = bf16_to_float(float_to_bf16(value));
      return;
    case KvFormat::kQ8_0:
    case KvFormat::kQ4_0:
    case KvFormat::kQ4H:
      break;
  }
  for (size_t begin = 0; begin < row.size(); begin += kKvBlockDimensions) {
    const KvQuants block = quantize_kv(format, &row[begin]);
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      row[begin + i] = half_to_float(block.scale) * static_cast<float>(block.quants[i]);
    }
  }
}

void PagedSequence::AlignedDelete::operator()(std::byte* p) const {
  ::operator delete[](p, kAlignment);
}

PagedSequence::PagedSequence(const KvFormats& format, HeadDimensions dimensions, size_t context,
                             uint32_t seed, uint8_t filler)
    : format_(format),
      dimensions_(dimensions),
      context_(context),
      filler_(filler),
      keys_(random_floats(context * dimensions.keys, seed)),
      values_(random_floats(context * dimensions.values, seed + 1)),
      pages_((context + kPageTokens - 1) / kPageTokens),
      page_stride_bytes_(key_block_bytes(format.keys, dimensions.keys) +
                         value_block_bytes(format.values, dimensions.values)),
      blocks_(new (kAlignment) std::byte[page_stride_bytes_ * pages_.size()]) {
  madvise(blocks_.get(), page_stride_bytes_ * pages_.size(), MADV_HUGEPAGE);
  for (size_t token = 0; token < context; ++token) {
    store_row(format.keys, key_row(token));
    store_row(format.values, value_row(token));
  }
  permute_pages(seed + 2);
}

AttentionArguments PagedSequence::arguments(const float* queries, size_t query_count, float* output,
                                            size_t token_count) const {
  return {.format = format_,
          .head_dimension = dimensions_.keys,
          .value_dimension = dimensions_.values,
          .keys = blocks_.get(),
          .values = blocks_.get() + key_block_bytes(format_.keys, dimensions_.keys),
          .page_stride_bytes = page_stride_bytes_,
          .pages = pages_.data(),
          .position = context_ - token_count,
          .token_count = token_count,
          .queries = queries,
          .query_stride = dimensions_.keys,
          .query_token_stride = query_count * dimensions_.keys,
          .query_count = query_count,
          .scale = 0.125F,
          .output = output,
          .output_stride = dimensions_.values,
          .output_token_stride = query_count * dimensions_.values};
}

const std::byte* PagedSequence::key_block(size_t page) const {
  return blocks_.get() + pages_[page] * page_stride_bytes_;
}

const std::byte* PagedSequence::value_block(size_t page) const {
  return key_block(page) + key_block_bytes(format_.keys, dimensions_.keys);
}

double PagedSequence::key(size_t token, size_t dimension) const {
  return key_row(token)[dimension];
}

double PagedSequence::value(size_t token, size_t dimension) const {
  return value_row(token)[dimension];
}

void PagedSequence::set_key(size_t token, size_t dimension, float value) {
  key_row(token)[dimension] = value;
  store_row(format_.keys, key_row(token));
  write_pages();
}

void PagedSequence::copy_keys_to_values() {
  values_ = keys_;
  write_pages();
}

void PagedSequence::spoil(size_t token_begin, size_t token_end) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t token = token_begin; token < token_end; ++token) {
    std::ranges::fill(key_row(token), nan);
    std::ranges::fill(value_row(token), nan);
  }
  write_pages();
}

void PagedSequence::permute_pages(uint32_t seed) {
  std::iota(pages_.begin(), pages_.end(), 0U);
  std::shuffle(pages_.begin(), pages_.end(), std::mt19937(seed));
  write_pages();
}

std::span<const float> PagedSequence::key_row(size_t token) const {
  return std::span(keys_).subspan(token * dimensions_.keys, dimensions_.keys);
}

std::span<float> PagedSequence::key_row(size_t token) {
  return std::span(keys_).subspan(token * dimensions_.keys, dimensions_.keys);
}

std::span<const float> PagedSequence::value_row(size_t token) const {
  return std::span(values_).subspan(token * dimensions_.values, dimensions_.values);
}

std::span<float> PagedSequence::value_row(size_t token) {
  return std::span(values_).subspan(token * dimensions_.values, dimensions_.values);
}

void PagedSequence::write_pages() {
  std::memset(blocks_.get(), filler_, page_stride_bytes_ * pages_.size());
  for (size_t token = 0; token < context_; ++token) {
    std::byte* keys = blocks_.get() + pages_[token / kPageTokens] * page_stride_bytes_;
    std::byte* values = keys + key_block_bytes(format_.keys, dimensions_.keys);
    write_key(token % kPageTokens, key_row(token), keys);
    write_value(token % kPageTokens, value_row(token), values);
  }
}

void PagedSequence::write_key(size_t slot, std::span<const float> key, std::byte* keys) const {
  const KvFormat format = format_.keys;
  if (!has_scales(format)) {
    for (size_t i = 0; i < key.size(); ++i) {
      write_element(format, keys, i * kPageTokens + slot, key[i]);
    }
    return;
  }
  std::byte* scales = keys + kv_quant_bytes(format, key.size());
  for (size_t block = 0; block < key.size() / kKvBlockDimensions; ++block) {
    const KvQuants stored = quantize_kv(format, &key[block * kKvBlockDimensions]);
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      write_quant(format, stored.quants[i],
                  place_of_key(format, block * kKvBlockDimensions + i, slot), keys);
    }
    std::memcpy(scales + (block * kPageTokens + slot) * 2, &stored.scale, 2);
  }
}

void PagedSequence::write_value(size_t slot, std::span<const float> value,
                                std::byte* values) const {
  const KvFormat format = format_.values;
  if (!has_scales(format)) {
    const size_t stride = (value.size() + 15) / 16 * 16;
    for (size_t i = 0; i < value.size(); ++i) {
      write_element(format, values, slot * stride + i, value[i]);
    }
    return;
  }
  const size_t blocks = value.size() / kKvBlockDimensions;
  std::byte* scales = values + kv_quant_bytes(format, value.size());
  for (size_t block = 0; block < blocks; ++block) {
    const KvQuants stored = quantize_kv(format, &value[block * kKvBlockDimensions]);
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      write_quant(format, stored.quants[i],
                  place_of_value(format, value.size(), block * kKvBlockDimensions + i, slot),
                  values);
    }
    std::memcpy(scales + (slot * blocks + block) * 2, &stored.scale, 2);
  }
}

}  // namespace lockstep
