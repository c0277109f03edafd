// Which heads and keys a block of attention has, and where what it gives goes (gpu_attention.h).
// Included after gpu_code.h.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kv_elements.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

// The query heads [first, first + count) of one KV head that a block has.
struct BlockHeads {
  unsigned kv_head;
  unsigned first;
  unsigned count;
};

GPU_FUNCTION BlockHeads block_heads(const GpuAttention& a, unsigned column, unsigned queries) {
  const unsigned parts = divide_up(a.group, queries);
  const unsigned kv_head = column / parts;
  const unsigned group_begin = kv_head * a.group;
  const unsigned begin = group_begin < a.group_offset ? 0 : group_begin - a.group_offset;
  const unsigned group_end = group_begin + a.group - a.group_offset;
  const unsigned end = group_end < a.head_count ? group_end : a.head_count;
  const unsigned first = begin + column % parts * queries;
  const unsigned left = first < end ? end - first : 0;
  return {kv_head, first, left < queries ? left : queries};
}

// Whether scores are capped or sloped, heads have sinks, or tokens sections or later keys. Kernels
// for it are compiled by themselves (`kShaped`): the others need no registers, and take no turns,
// for any of it.
inline bool is_shaped(const GpuAttention& a) {
  return a.section != 0 || a.score_cap != 0 || a.sinks != nullptr || a.slopes != nullptr ||
         a.ahead != 0;
}
// Kernels of generated tokens are compiled once more for values of other dimensions than keys
// (`kUnlike`), with shapes or without.
enum class AttentionKind : uint8_t { kPlain, kShaped, kUnlike };
inline AttentionKind kind_of(const GpuAttention& a) {
  if (a.kv.key_dimension != a.kv.value_dimension) return AttentionKind::kUnlike;
  return is_shaped(a) ? AttentionKind::kShaped : AttentionKind::kPlain;
}

template <typename Work>
void with_kind(AttentionKind kind, const Work& work) {
  switch (kind) {
    case AttentionKind::kPlain:
      return work.template operator()<AttentionKind::kPlain>();
    case AttentionKind::kShaped:
      return work.template operator()<AttentionKind::kShaped>();
    case AttentionKind::kUnlike:
      return work.template operator()<AttentionKind::kUnlike>();
  }
}

template <bool kShaped>
GPU_FUNCTION unsigned first_key(const GpuAttention& a, unsigned position) {
  const unsigned first = a.window == 0 || a.window > position ? 0 : position + 1 - a.window;
  if (!kShaped || a.section == 0) return first;
  const unsigned in_section = position - position % a.section;
  return first < in_section ? in_section : first;
}

// By how much a slope of 1 lowers the score of a key so many positions behind the token's.
GPU_FUNCTION float slope_distance(int behind) {
  return static_cast<float>(behind > 0 ? -behind : behind);
}

// The sequence's length, as last_key() wants it.
template <bool kShaped>
GPU_FUNCTION unsigned length_of(const GpuAttention& a, unsigned sequence) {
  return kShaped && a.ahead != 0 ? a.batch.lengths[sequence] : 0;
}

template <bool kShaped>
GPU_FUNCTION unsigned last_key(const GpuAttention& a, unsigned position, unsigned length) {
  if (!kShaped || a.ahead == 0) return position;
  return a.ahead < length - 1 - position ? position + a.ahead : length - 1;
}

// The sum that a head's weights have come to. Its outputs are multiplied by `scale`, and then
// divided by `sum`.
struct HeadSums {
  float scale;
  float sum;
};
template <bool kShaped>
GPU_FUNCTION HeadSums head_sums(const GpuAttention& a, unsigned head, float maximum, float sum) {
  if (!kShaped || a.sinks == nullptr) return {1, sum};
  const float most = greater(maximum, a.sinks[head]);
  const float scale = exponential_of(maximum - most);
  return {scale, multiply_add(sum, scale, exponential_of(a.sinks[head] - most))};
}

template <bool kUnlike>
GPU_FUNCTION void write_attention(const GpuAttention& a, unsigned token, unsigned head,
                                  unsigned dimension, float value) {
  const unsigned column = head * value_dimensions<kUnlike>(a.kv) + dimension;
  if (a.output.floats != nullptr) a.output.floats[token * a.output.float_stride + column] = value;
  if (a.output.bf16 != nullptr)
    a.output.bf16[token * a.output.bf16_stride + column] = to_bf16(value);
}

// Products take 32 columns at a time. By the threads that have the token's last head.
template <bool kUnlike>
GPU_FUNCTION void pad_attention(const GpuAttention& a, unsigned token, unsigned thread) {
  const unsigned columns = a.head_count * value_dimensions<kUnlike>(a.kv);
  if (a.output.bf16 == nullptr || thread >= (32 - columns % 32) % 32) return;
  a.output.bf16[token * a.output.bf16_stride + columns + thread] = 0;
}

}  // namespace
}  // namespace lockstep
