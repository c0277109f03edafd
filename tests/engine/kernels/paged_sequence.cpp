#include "tests/engine/kernels/paged_sequence.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <random>

#include "engine/tensor/format.h"

namespace lockstep {
namespace {

// Large pages of memory where there are any, as a rank's arenas have.
constexpr std::align_val_t kAlignment{size_t{2} << 20U};

}  // namespace

std::string format_name(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kF16:
      return "f16";
    case KvFormat::kBf16:
      return "bf16";
    case KvFormat::kQ8_0:
      return "q8_0";
  }
  return "unknown";
}

size_t fitting_dimension(KvFormat format, size_t head_dimension) {
  while (!kv_format_fits(format, head_dimension)) ++head_dimension;
  return head_dimension;
}

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

KvQuants quantize_kv(const float* values) {
  float greatest = 0.0F;
  bool finite = true;
  for (size_t i = 0; i < kKvBlockDimensions; ++i) {
    greatest = std::max(greatest, std::fabs(values[i]));
    finite = finite && std::isfinite(values[i]);
  }
  KvQuants result = {};
  if (!finite) {
    result.scale = float_to_half(std::numeric_limits<float>::quiet_NaN());
    return result;
  }
  result.scale = float_to_half(std::min(greatest / 127.0F, 65504.0F));
  const float scale = half_to_float(result.scale);
  for (size_t i = 0; i < kKvBlockDimensions && scale > 0.0F; ++i) {
    const float rounded = std::nearbyint(values[i] / scale);
    result.quants[i] = static_cast<int8_t>(std::clamp(rounded, -127.0F, 127.0F));
  }
  return result;
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
      break;
  }
  for (size_t begin = 0; begin < row.size(); begin += kKvBlockDimensions) {
    const KvQuants block = quantize_kv(&row[begin]);
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      row[begin + i] = half_to_float(block.scale) * static_cast<float>(block.quants[i]);
    }
  }
}

void PagedSequence::AlignedDelete::operator()(std::byte* p) const {
  ::operator delete[](p, kAlignment);
}

PagedSequence::PagedSequence(KvFormat format, HeadDimensions dimensions, size_t context,
                             uint32_t seed, uint8_t filler)
    : format_(format),
      dimensions_(dimensions),
      context_(context),
      filler_(filler),
      keys_(random_floats(context * dimensions.keys, seed)),
      values_(random_floats(context * dimensions.values, seed + 1)),
      pages_((context + kPageTokens - 1) / kPageTokens),
      page_stride_bytes_(key_block_bytes(format, dimensions.keys) +
                         value_block_bytes(format, dimensions.values)),
      blocks_(new (kAlignment) std::byte[page_stride_bytes_ * pages_.size()]) {
  madvise(blocks_.get(), page_stride_bytes_ * pages_.size(), MADV_HUGEPAGE);
  for (size_t token = 0; token < context; ++token) {
    store_row(format, key_row(token));
    store_row(format, value_row(token));
  }
  permute_pages(seed + 2);
}

AttentionArguments PagedSequence::arguments(const float* queries, size_t query_count, float* output,
                                            size_t token_count) const {
  return {.format = format_,
          .head_dimension = dimensions_.keys,
          .value_dimension = dimensions_.values,
          .keys = blocks_.get(),
          .values = blocks_.get() + key_block_bytes(format_, dimensions_.keys),
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
  return key_block(page) + key_block_bytes(format_, dimensions_.keys);
}

double PagedSequence::key(size_t token, size_t dimension) const {
  return key_row(token)[dimension];
}

double PagedSequence::value(size_t token, size_t dimension) const {
  return value_row(token)[dimension];
}

void PagedSequence::set_key(size_t token, size_t dimension, float value) {
  key_row(token)[dimension] = value;
  store_row(format_, key_row(token));
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
  const size_t stride = (dimensions_.values + 15) / 16 * 16;
  for (size_t token = 0; token < context_; ++token) {
    std::byte* keys = blocks_.get() + pages_[token / kPageTokens] * page_stride_bytes_;
    std::byte* values = keys + key_block_bytes(format_, dimensions_.keys);
    const size_t slot = token % kPageTokens;
    if (format_ == KvFormat::kQ8_0) {
      write_quants(slot, key_row(token), value_row(token), keys, values);
      continue;
    }
    for (size_t i = 0; i < dimensions_.keys; ++i) {
      write_element(keys, i * kPageTokens + slot, key_row(token)[i]);
    }
    for (size_t i = 0; i < dimensions_.values; ++i) {
      write_element(values, slot * stride + i, value_row(token)[i]);
    }
  }
}

// A stored block is stored again as it is: its greatest element is 127 times the scale.
void PagedSequence::write_quants(size_t slot, std::span<const float> key,
                                 std::span<const float> value, std::byte* keys, std::byte* values) {
  std::byte* const key_scales = keys + key.size() * kPageTokens;
  for (size_t begin = 0; begin < key.size(); begin += kKvBlockDimensions) {
    const KvQuants of_key = quantize_kv(&key[begin]);
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      keys[(begin + i) * kPageTokens + slot] = static_cast<std::byte>(of_key.quants[i]);
    }
    const size_t block = begin / kKvBlockDimensions;
    std::memcpy(key_scales + (block * kPageTokens + slot) * 2, &of_key.scale, 2);
  }
  std::byte* const value_scales = values + value.size() * kPageTokens;
  const size_t blocks = value.size() / kKvBlockDimensions;
  for (size_t block = 0; block < blocks; ++block) {
    const size_t begin = block * kKvBlockDimensions;
    const KvQuants of_value = quantize_kv(&value[begin]);
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      values[slot * value.size() + begin + i] = static_cast<std::byte>(of_value.quants[i]);
    }
    std::memcpy(value_scales + (slot * blocks + block) * 2, &of_value.scale, 2);
  }
}

void PagedSequence::write_element(std::byte* block, size_t index, float value) {
  if (format_ == KvFormat::kF32) {
    std::memcpy(block + index * sizeof value, &value, sizeof value);
    return;
  }
  const uint16_t bits = format_ == KvFormat::kF16 ? float_to_half(value) : float_to_bf16(value);
  std::memcpy(block + index * sizeof bits, &bits, sizeof bits);
}

}  // namespace lockstep
