#include "engine/kernels/gpu_batch.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

constexpr size_t kPartAlignment = 16;

// Takes arrays of numbers from a block, or only counts them where there is none.
class Numbers {
 public:
  explicit Numbers(std::byte* block) : block_(block) {}

  uint32_t* take(size_t count) {
    std::byte* begin = block_ == nullptr ? nullptr : block_ + bytes_;
    bytes_ += round_up<size_t>(count * sizeof(uint32_t), kPartAlignment);
    return reinterpret_cast<uint32_t*>(begin);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* block_;
  size_t bytes_ = 0;
};

GpuBatch lay_out(Numbers& numbers, const GpuBatchLimits& limits) {
  GpuBatch batch;
  batch.counts =
      reinterpret_cast<GpuBatchCounts*>(numbers.take(sizeof(GpuBatchCounts) / sizeof(uint32_t)));
  batch.token_ids = numbers.take(limits.tokens);
  batch.positions = numbers.take(limits.tokens);
  batch.sequences = numbers.take(limits.tokens);
  if (limits.segments > 0) batch.segments = numbers.take(limits.segments);
  batch.logit_rows = numbers.take(limits.tokens);
  batch.logit_tokens = numbers.take(limits.logits);
  batch.draws = reinterpret_cast<GpuDrawRequest*>(
      numbers.take(limits.logits * sizeof(GpuDrawRequest) / sizeof(uint32_t)));
  batch.tile_tokens = numbers.take(limits.tokens);
  batch.tile_counts = numbers.take(limits.tokens);
  batch.page_tables = numbers.take(limits.sequences);
  if (limits.lengths > 0) batch.lengths = numbers.take(limits.lengths);
  batch.units = reinterpret_cast<GpuAttentionUnit*>(
      numbers.take(limits.attention_units * sizeof(GpuAttentionUnit) / sizeof(uint32_t)));
  batch.pages = numbers.take(limits.groups * limits.pages);
  return batch;
}

}  // namespace

size_t gpu_batch_bytes(const GpuBatchLimits& limits) {
  Numbers numbers(nullptr);
  lay_out(numbers, limits);
  return numbers.bytes();
}

GpuBatch gpu_batch_at(std::byte* block, const GpuBatchLimits& limits) {
  Numbers numbers(block);
  return lay_out(numbers, limits);
}

GpuBatchWriter::GpuBatchWriter(std::byte* block, const GpuBatchLimits& limits)
    : limits_(limits), batch_(gpu_batch_at(block, limits)) {
  begin();
}

void GpuBatchWriter::begin() {
  *batch_.counts = {};
  sequence_count_ = 0;
  page_count_ = 0;
}

uint32_t GpuBatchWriter::add_sequence(std::span<const std::span<const uint32_t>> tables) {
  CHECK(sequence_count_ < limits_.sequences, "more than {} sequences", limits_.sequences);
  CHECK(tables.size() == limits_.groups, "{} page tables of {} groups", tables.size(),
        limits_.groups);
  const size_t count = tables.front().size();
  CHECK(page_count_ + count <= limits_.pages, "more than {} pages", limits_.pages);
  batch_.page_tables[sequence_count_] = static_cast<uint32_t>(page_count_);
  for (size_t group = 0; group < tables.size(); ++group) {
    CHECK(tables[group].size() == count, "page tables of {} and {} pages", count,
          tables[group].size());
    std::ranges::copy(tables[group], batch_.pages + group * limits_.pages + page_count_);
  }
  page_count_ += count;
  return static_cast<uint32_t>(sequence_count_++);
}

void GpuBatchWriter::add_token(uint32_t token_id, uint32_t position, uint32_t sequence,
                               uint32_t segment) {
  const uint32_t index = batch_.counts->tokens++;
  CHECK(index < limits_.tokens, "more than {} tokens", limits_.tokens);
  if (index == 0 || batch_.sequences[index - 1] != sequence) ++batch_.counts->sequences;
  batch_.token_ids[index] = token_id;
  batch_.positions[index] = position;
  batch_.sequences[index] = sequence;
  batch_.logit_rows[index] = kGpuNoRow;
  if (batch_.segments != nullptr) batch_.segments[index] = segment;
  if (batch_.lengths != nullptr) batch_.lengths[sequence] = position + 1;
}

void GpuBatchWriter::add_generated(uint32_t token_id, uint32_t position, uint32_t sequence,
                                   uint32_t segment) {
  CHECK(batch_.counts->generated == batch_.counts->tokens, "a generated token after prompted ones");
  add_token(token_id, position, sequence, segment);
  ++batch_.counts->generated;
}

void GpuBatchWriter::add_prompted(uint32_t token_id, uint32_t position, uint32_t sequence,
                                  uint32_t segment) {
  add_token(token_id, position, sequence, segment);
}

void GpuBatchWriter::want_logits(const GpuDrawRequest& draw) {
  const uint32_t row = batch_.counts->logits++;
  CHECK(row < limits_.logits, "more than {} rows of logits", limits_.logits);
  const uint32_t token = batch_.counts->tokens - 1;
  batch_.logit_tokens[row] = token;
  batch_.draws[row] = draw;
  batch_.logit_rows[token] = row;
}

void GpuBatchWriter::end() {
  GpuBatchCounts& counts = *batch_.counts;
  counts.attention_units = 0;
  for (counts.split = 0; counts.split < counts.generated; ++counts.split) {
    GpuAttentionUnit unit = {.token = counts.split,
                             .position = batch_.positions[counts.split],
                             .pages = batch_.page_tables[batch_.sequences[counts.split]],
                             .index = 0};
    const uint32_t units = gpu_token_units(unit.position);
    if (counts.attention_units + units > limits_.attention_units) break;
    for (; unit.index < units; ++unit.index) batch_.units[counts.attention_units++] = unit;
  }
  counts.prompt_tiles = 0;
  // From the end: of a prompt the last tokens see most keys.
  for (uint32_t end = counts.tokens; end > counts.generated;) {
    uint32_t begin = end - 1;
    while (begin > counts.generated && end - begin < kGpuTileTokens &&
           batch_.sequences[begin - 1] == batch_.sequences[begin]) {
      --begin;
    }
    batch_.tile_tokens[counts.prompt_tiles] = begin;
    batch_.tile_counts[counts.prompt_tiles++] = end - begin;
    end = begin;
  }
}

size_t GpuBatchWriter::used_bytes() const {
  const auto* begin = reinterpret_cast<const std::byte*>(batch_.counts);
  const size_t pages = (limits_.groups - 1) * limits_.pages + page_count_;
  const auto* end = reinterpret_cast<const std::byte*>(batch_.pages + pages);
  return static_cast<size_t>(end - begin);
}

}  // namespace lockstep
