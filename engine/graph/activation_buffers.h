// Places a plan's activations into the rank's scratch arena and into the exchange arenas. The
// latter get the same layout on every rank, whatever the rank holds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/base/range.h"
#include "engine/graph/arenas.h"
#include "engine/graph/step_buffers.h"
#include "engine/kernels/activation.h"

namespace lockstep {

// Places buffers that live for a part of a plan into one arena: released memory is used again.
class ScratchAllocator {
 public:
  // Offset of at least `bytes` of free memory, 64-byte aligned: the first that fits.
  size_t allocate(size_t bytes);
  // Gives back memory that allocate() returned.
  void release(size_t offset);

  size_t size_bytes() const { return size_bytes_; }  // of the arena so far

 private:
  std::map<size_t, size_t> free_;  // offset -> bytes, neighbours merged
  std::map<size_t, size_t> used_;
  size_t size_bytes_ = 0;
};

// Rows of an arena, stride_bytes apart.
struct Stretch {
  Arena arena = Arena::kScratch;  // or kExchange
  size_t offset = 0;              // bytes
  size_t stride_bytes = 0;

  size_t floats() const { return stride_bytes / sizeof(float); }  // of the stride
  // Column `column` of the first row.
  template <typename T>
  ArenaOffset<T> at(size_t column = 0) const {
    return {arena, offset + column * sizeof(T)};
  }
};

// A value's place: its own f32 columns `held`, or rows in the forms in which products consume
// it, or both; and whole rows in f32 where something reads what other ranks compute.
struct Buffer {
  std::optional<Stretch> plain;
  Range held;
  std::optional<Stretch> whole;
  std::array<std::optional<Stretch>, kActivationFormCount> forms;  // by ActivationForm
  size_t form_columns = 0;
  std::optional<Stretch> chunk_sums;  // of a norm's residual
  NormFactor norm;                    // of a norm's product; else none
  size_t references = 0;              // uses still to come; at 0 the memory is free again
};

// From one row of floats to the next in the scratch arena. Rows that are not sent as they lie are
// an odd number of lines apart: side by side they then do not fall into one set of a cache.
size_t scratch_row_bytes(size_t columns);

class ActivationBuffers {
 public:
  Stretch allocate(ActivationForm form, Arena arena, size_t columns, size_t row_count);
  Stretch allocate_f32(Arena arena, size_t columns, size_t row_count) {
    return allocate(ActivationForm::kF32, arena, columns, row_count);
  }

  void release(const Stretch& stretch);
  void release(const Buffer& buffer);

  // All ranks have passed a barrier: no rank reads any more what was released in the exchange
  // arenas before it, and other ranks may write there again.
  void all_ranks_met();

  size_t scratch_bytes() const { return scratch_.size_bytes(); }
  size_t exchange_bytes() const { return exchange_.size_bytes(); }

 private:
  ScratchAllocator& allocator(Arena arena) {
    return arena == Arena::kScratch ? scratch_ : exchange_;
  }

  ScratchAllocator scratch_;
  ScratchAllocator exchange_;
  std::vector<size_t> released_;  // offsets in the exchange arena
};

// Areas that one step alone needs.
class StepAreas {
 public:
  explicit StepAreas(ActivationBuffers& activations) : activations_(activations) {}

  Stretch take(ActivationForm form, Arena arena, size_t columns, size_t row_count);
  Stretch take_f32(Arena arena, size_t columns, size_t row_count) {
    return take(ActivationForm::kF32, arena, columns, row_count);
  }
  // After the step: all that have been taken since the last call.
  void release();

 private:
  ActivationBuffers& activations_;
  std::vector<Stretch> taken_;
};

}  // namespace lockstep
