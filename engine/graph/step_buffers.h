// The operands and results of steps: a rank's matrices, and activations in the forms in which they
// are consumed, all named by arena and offset (arenas.h). Steps are made of these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/graph/arenas.h"
#include "engine/graph/graph.h"
#include "engine/kernels/activation.h"
#include "engine/tensor/format.h"

namespace lockstep {

// A slice of a weight matrix in this rank's memory. How it lies there is the device's: a
// PackedMatrix on processors, a GpuMatrix on a GPU. No rows: the rank holds none of it.
struct PlannedMatrix {
  Format format = Format::kF32;
  size_t rows = 0;
  size_t columns = 0;
  ArenaOffset<const std::byte> data = {};
  float scale = 1;  // Weight's

  friend bool operator==(const PlannedMatrix&, const PlannedMatrix&) = default;
};

// One form of an activation, for the tokens that are consumed in it.
struct FormBuffer {
  ArenaOffset<std::byte> rows = {};
  size_t stride_bytes = 0;
  bool prompted = false;   // written and read for prompted tokens
  bool generated = false;  // ... for generated tokens

  bool is_read() const { return prompted || generated; }
  friend bool operator==(const FormBuffer&, const FormBuffer&) = default;
};

// An activation in the forms in which products consume it.
struct Forms {
  size_t columns = 0;  // of a row
  std::array<FormBuffer, kActivationFormCount> buffers;

  FormBuffer& operator[](ActivationForm form) { return buffers[static_cast<size_t>(form)]; }
  const FormBuffer& operator[](ActivationForm form) const {
    return buffers[static_cast<size_t>(form)];
  }

  friend bool operator==(const Forms&, const Forms&) = default;
};

// The destination of some columns of an activation: rows of `forms`, from `first_column` on. Whole
// blocks of 32, but for the end of the row.
struct FormsOutput {
  Forms forms;
  size_t first_column = 0;
  bool gather = false;
  size_t columns = 0;  // from the first one on: those of this rank

  friend bool operator==(const FormsOutput&, const FormsOutput&) = default;
};

// Sums of the squares of a residual's chunks of 32 columns, [token][chunk].
struct ChunkSums {
  ArenaOffset<float> sums = {};
  size_t stride = 0;  // floats

  friend bool operator==(const ChunkSums&, const ChunkSums&) = default;
};

// The factor of a product of a normed input, per token: 1 / sqrt(the sum of the chunks /
// columns + epsilon).
struct NormFactor {
  ChunkSums chunks;  // none: the input is not normed
  size_t columns = 0;
  float epsilon = 0;

  friend bool operator==(const NormFactor&, const NormFactor&) = default;
};

// The product of a residual with a norm's weight, and the sums of its squares. Over kLogits rows
// the residual's row is the one of the token, the output's row the logit's own.
struct NormOutput {
  Rows rows = Rows::kTokens;
  ArenaOffset<const float> weight = {};  // of the residual's columns that are at hand
  FormsOutput output;
  ChunkSums chunks;

  friend bool operator==(const NormOutput&, const NormOutput&) = default;
};

// The table that a RotaryTableStep fills.
struct RotaryTable {
  ArenaOffset<const float> rows = {};  // [token]; none: no rotary positions
  size_t stride = 0;                   // floats
  size_t dimensions = 0;               // that are rotated

  friend bool operator==(const RotaryTable&, const RotaryTable&) = default;
};

// The rows that experts compute: those of an expert follow one another, in the batch's order (so
// that generated tokens come first), after those of the experts before it. One area for all layers.
struct Routing {
  size_t expert_count = 0;
  size_t chosen_count = 0;                // of a token
  ArenaOffset<uint32_t> chosen = {};      // [token][chosen_count]: experts, ...
  ArenaOffset<float> weights = {};        // ... and the factors of their results
  ArenaOffset<uint32_t> row_begin = {};   // [expert], and the end of the last one's
  ArenaOffset<uint32_t> row_tokens = {};  // [row]
  bool weighs_inputs = false;             // Gating's

  friend bool operator==(const Routing&, const Routing&) = default;
};

// Columns of a value's rows in f32.
struct PlainRows {
  ArenaOffset<const float> rows = {};
  size_t stride = 0;  // floats

  friend bool operator==(const PlainRows&, const PlainRows&) = default;
};

// The destination of a value's own columns: f32 rows (or none), and forms of them.
struct PlainOutput {
  ArenaOffset<float> rows = {};
  size_t stride = 0;  // floats
  std::vector<FormsOutput> forms = {};
  size_t columns = 0;  // of `rows`: those of this rank

  bool is_gathered() const {
    for (const FormsOutput& output : forms) {
      if (output.gather) return true;
    }
    return false;
  }
  friend bool operator==(const PlainOutput&, const PlainOutput&) = default;
};

}  // namespace lockstep
