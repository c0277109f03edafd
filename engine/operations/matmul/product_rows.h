// Products of some rows: the steps of whole passes and those of experts share them.
#pragma once

#include <algorithm>
#include <cstddef>

#include "engine/base/checked_math.h"
#include "engine/base/range.h"
#include "engine/operations/matmul/matmul_step.h"
#include "engine/pass/pass.h"

namespace lockstep {

// Panels of a unit: two give the 32 columns in which what follows takes its results.
inline constexpr size_t kUnitPanels = kChunkColumns / kPanelRows;

inline size_t unit_count(const PlannedMatrix& matrix) {
  return divide_up(matrix.rows, kChunkColumns);
}

inline Range panels_of(Range units, const PlannedMatrix& matrix) {
  return {units.begin * kUnitPanels,
          std::min(units.end * kUnitPanels, divide_up(matrix.rows, kPanelRows))};
}

// The number of tasks that each worker should find: with few, the last ones are waited for; with
// many, each reads its activations again.
inline constexpr size_t kTasksPerWorker = 4;

// The most rows of a product (ProductRows).
inline constexpr size_t kMostProductRows = 256;

// Up to so many rows a product reads weights for most of its time.
inline constexpr size_t kStaticRows = 16;

struct ProductRows {
  Range rows;                // of the output
  size_t generated_end = 0;  // rows before this one are of generated tokens
  const Forms& input;
  size_t input_begin = 0;          // where the input of rows.begin lies; the others' follow
  const float* factors = nullptr;  // one per row, by which results are multiplied; or none
};

// A gate and what it gates: their panels are alike.
struct GateParts {
  const MatmulPart& gate;
  const MatmulPart& up;
};

// The columns of a product that these panels give.
Range columns_of(Range panels, const PlannedMatrix& matrix);

void multiply(const MatmulPart& part, Range panels, const ProductRows& product, const Pass& pass);

// Both products and of their results activation(the gate's) * up's, in the forms in which it is
// read. The products themselves may be written to the parts' outputs or not.
void multiply_gate(const GateParts& parts, const Activation& activation, const FormsOutput& output,
                   Range panels, const ProductRows& product, const Pass& pass);

// A product, and of its results activation(them).
void multiply_activated(const MatmulPart& part, const Activation& activation,
                        const FormsOutput& output, Range panels, const ProductRows& product,
                        const Pass& pass);

}  // namespace lockstep
