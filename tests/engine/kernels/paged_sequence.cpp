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

PagedSequence::PagedSequence(KvFormat format, size_t head_dimension, size_t context, uint32_t seed,
                             uint8_t filler)
    : format_(format),
      head_dimension_(head_dimension),
      context_(context),
      filler_(filler),
      keys_(random_floats(context * head_dimension, seed)),
      values_(random_floats(context * head_dimension, seed + 1)),
      pages_((context + kPageTokens - 1) / kPageTokens),
      page_stride_bytes_(key_block_bytes(format, head_dimension) +
                         value_block_bytes(format, head_dimension)),
      blocks_(new (kAlignment) std::byte[page_stride_bytes_ * pages_.size()]) {
  madvise(blocks_.get(), page_stride_bytes_ * pages_.size(), MADV_HUGEPAGE);
  for (size_t token = 0; token < context; ++token) {
    store_row(format, row(keys_, token));
    store_row(format, row(values_, token));
  }
  permute_pages(seed + 2);
}

AttentionArguments PagedSequence::arguments(const float* queries, size_t query_count, float* output,
                                            size_t token_count) const {
  return {.format = format_,
          .head_dimension = head_dimension_,
          .value_dimension = head_dimension_,
          .keys = blocks_.get(),
          .values = blocks_.get() + key_block_bytes(format_, head_dimension_),
          .page_stride_bytes = page_stride_bytes_,
          .pages = pages_.data(),
          .position = context_ - token_count,
          .token_count = token_count,
          .queries = queries,
          .query_stride = head_dimension_,
          .query_token_stride = query_count * head_dimension_,
          .query_count = query_count,
          .scale = 0.125F,
          .output = output,
          .output_stride = head_dimension_,
          .output_token_stride = query_count * head_dimension_};
}

const std::byte* PagedSequence::key_block(size_t page) const {
  return blocks_.get() + pages_[page] * page_stride_bytes_;
}

const std::byte* PagedSequence::value_block(size_t page) const {
  return key_block(page) + key_block_bytes(format_, head_dimension_);
}

double PagedSequence::key(size_t token, size_t dimension) const {
  return keys_[token * head_dimension_ + dimension];
}

double PagedSequence::value(size_t token, size_t dimension) const {
  return values_[token * head_dimension_ + dimension];
}

void PagedSequence::set_key(size_t token, size_t dimension, float value) {
  row(keys_, token)[dimension] = value;
  store_row(format_, row(keys_, token));
  write_pages();
}

void PagedSequence::copy_keys_to_values() {
  values_ = keys_;
  write_pages();
}

void PagedSequence::spoil(size_t token_begin, size_t token_end) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = token_begin * head_dimension_; i < token_end * head_dimension_; ++i) {
    keys_[i] = values_[i] = nan;
  }
  write_pages();
}

void PagedSequence::permute_pages(uint32_t seed) {
  std::iota(pages_.begin(), pages_.end(), 0U);
  std::shuffle(pages_.begin(), pages_.end(), std::mt19937(seed));
  write_pages();
}

std::span<const float> PagedSequence::row(const std::vector<float>& rows, size_t token) const {
  return std::span(rows).subspan(token * head_dimension_, head_dimension_);
}

std::span<float> PagedSequence::row(std::vector<float>& rows, size_t token) const {
  return std::span(rows).subspan(token * head_dimension_, head_dimension_);
}

void PagedSequence::write_pages() {
  std::memset(blocks_.get(), filler_, page_stride_bytes_ * pages_.size());
  const size_t value_row = (head_dimension_ + 15) / 16 * 16;
  for (size_t token = 0; token < context_; ++token) {
    std::byte* keys = blocks_.get() + pages_[token / kPageTokens] * page_stride_bytes_;
    std::byte* values = keys + key_block_bytes(format_, head_dimension_);
    const size_t slot = token % kPageTokens;
    if (format_ == KvFormat::kQ8_0) {
      write_quants(slot, row(keys_, token), row(values_, token), keys, values);
      continue;
    }
    for (size_t i = 0; i < head_dimension_; ++i) {
      write_element(keys, i * kPageTokens + slot, row(keys_, token)[i]);
      write_element(values, slot * value_row + i, row(values_, token)[i]);
    }
  }
}

// A stored block is stored again as it is: its greatest element is 127 times the scale.
void PagedSequence::write_quants(size_t slot, std::span<const float> key,
                                 std::span<const float> value, std::byte* keys, std::byte* values) {
  const size_t quants = head_dimension_ * kPageTokens;
  const size_t blocks = head_dimension_ / kKvBlockDimensions;
  for (size_t block = 0; block < blocks; ++block) {
    const size_t begin = block * kKvBlockDimensions;
    const KvQuants of_key = quantize_kv(&key[begin]);
    const KvQuants of_value = quantize_kv(&value[begin]);
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      keys[(begin + i) * kPageTokens + slot] = static_cast<std::byte>(of_key.quants[i]);
      values[slot * head_dimension_ + begin + i] = static_cast<std::byte>(of_value.quants[i]);
    }
    std::memcpy(keys + quants + (block * kPageTokens + slot) * 2, &of_key.scale, 2);
    std::memcpy(values + quants + (slot * blocks + block) * 2, &of_value.scale, 2);
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
