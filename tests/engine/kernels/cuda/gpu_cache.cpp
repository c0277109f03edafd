#include "tests/engine/kernels/cuda/gpu_cache.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

constexpr size_t kAlignment = 64;
constexpr std::byte kGarbage{0xFF};  // NaN in every format

uint32_t seed_of(uint32_t seed, size_t sequence, size_t kv_head) {
  return seed + static_cast<uint32_t>(sequence * 100 + kv_head * 10);
}

}  // namespace

GpuBytes::GpuBytes(size_t bytes) : memory_(bytes + kAlignment, kGarbage) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  bytes_ = memory_.data() + (round_up<uintptr_t>(address, kAlignment) - address);
}

GpuTestBatch::GpuTestBatch(const GpuBatchLimits& limits)
    : block_(gpu_batch_bytes(limits)), writer_(block_.data(), limits) {}

GpuCache::GpuCache(KvFormat format, HeadDimensions dimensions, unsigned kv_head_count,
                   const std::vector<size_t>& contexts, uint32_t seed)
    : contexts_(contexts), kv_head_count_(kv_head_count) {
  size_t page_count = 1;  // one that nobody has
  for (const size_t context : contexts) page_count += (context + kPageTokens - 1) / kPageTokens;
  std::vector<uint32_t> numbers(page_count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(seed));
  auto next = numbers.begin();
  for (size_t sequence = 0; sequence < contexts.size(); ++sequence) {
    const auto count =
        static_cast<std::ptrdiff_t>((contexts[sequence] + kPageTokens - 1) / kPageTokens);
    pages_.emplace_back(next, next + count);
    next += count;
    for (size_t head = 0; head < kv_head_count; ++head) {
      stored_.push_back(std::make_unique<PagedSequence>(format, dimensions, contexts[sequence],
                                                        seed_of(seed, sequence, head)));
    }
  }
  const size_t page_bytes =
      key_block_bytes(format, dimensions.keys) + value_block_bytes(format, dimensions.values);
  blocks_ = std::make_unique<GpuBytes>(page_bytes * page_count * kv_head_count);
  layer_ = {.format = format,
            .key_dimension = static_cast<unsigned>(dimensions.keys),
            .value_dimension = static_cast<unsigned>(dimensions.values),
            .blocks = blocks_->data(),
            .head_stride_bytes = page_bytes * page_count,
            .page_stride_bytes = page_bytes};
  fill(seed);
}

const PagedSequence& GpuCache::stored(size_t sequence, size_t kv_head) const {
  return *stored_[sequence * kv_head_count_ + kv_head];
}

GpuBatchLimits GpuCache::limits() const {
  const size_t tokens = std::accumulate(contexts_.begin(), contexts_.end(), size_t{0});
  return {.tokens = tokens,
          .sequences = contexts_.size(),
          .pages = tokens,
          .logits = tokens,
          .attention_units = tokens};
}

void GpuCache::fill(uint32_t seed) {
  GpuTestBatch batch(limits());
  const size_t key_row = kv_head_count_ * layer_.key_dimension;
  const size_t value_row = kv_head_count_ * layer_.value_dimension;
  std::vector<float> keys(limits().tokens * key_row);
  std::vector<float> values(limits().tokens * value_row);
  // Puts a head's rows, [token][dimension], between those of the others.
  const auto put = [](const std::vector<float>& from, size_t dimensions, size_t row, float* to) {
    for (size_t i = 0; i < from.size(); ++i) to[i / dimensions * row + i % dimensions] = from[i];
  };
  size_t token = 0;
  for (size_t sequence = 0; sequence < contexts_.size(); ++sequence) {
    const uint32_t index = batch.writer().add_sequence(pages_[sequence]);
    const size_t context = contexts_[sequence];
    for (size_t head = 0; head < kv_head_count_; ++head) {
      // The same keys and values as PagedSequence has.
      const uint32_t own = seed_of(seed, sequence, head);
      put(random_floats(context * layer_.key_dimension, own), layer_.key_dimension, key_row,
          &keys[token * key_row + head * layer_.key_dimension]);
      put(random_floats(context * layer_.value_dimension, own + 1), layer_.value_dimension,
          value_row, &values[token * value_row + head * layer_.value_dimension]);
    }
    for (uint32_t position = 0; position < context; ++position) {
      batch.writer().add_prompted(0, position, index);
    }
    token += context;
  }
  gpu_prepare_heads(nullptr, {.batch = batch.batch(),
                              .kv = layer_,
                              .keys = keys.data(),
                              .values = values.data(),
                              .key_stride = key_row,
                              .value_stride = value_row,
                              .kv_head_count = kv_head_count_,
                              .grid_rows = 2});
}

}  // namespace lockstep
