// Values in f32, and a worker's share of computing one: rows by chunks of columns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine/base/range.h"
#include "engine/graph/step_buffers.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/pass.h"
#include "engine/pass/step_rows.h"

namespace lockstep {

// Columns that are computed at once, on the stack.
inline constexpr size_t kColumnsAtOnce = 512;

inline const float* row_of(const PlainRows& rows, size_t row, const Pass& pass) {
  return pass.at(rows.rows) + row * rows.stride;
}

// Writes columns of a row wherever the output wants them.
inline void write_output(const Pass& pass, const float* values, const PlainOutput& output,
                         size_t row, Range columns, bool generated) {
  if (output.rows) {
    std::memcpy(pass.at(output.rows) + row * output.stride + columns.begin, values,
                columns.size() * sizeof(float));
  }
  for (const FormsOutput& forms : output.forms) {
    write_forms(pass, values, forms, row, columns, generated);
  }
}

// Calls compute(row, columns, values) for a worker's share, and writes the values.
template <typename Compute>
void compute_rows(const StepRows& rows, size_t columns, const PlainOutput& output, const Pass& pass,
                  Compute compute) {
  alignas(64) float values[kColumnsAtOnce];
  for_each_stretch(rows.count(), columns, pass, [&](size_t row, Range mine) {
    for (size_t begin = mine.begin; begin < mine.end; begin += kColumnsAtOnce) {
      const Range at_once = {begin, std::min(mine.end, begin + kColumnsAtOnce)};
      compute(row, at_once, values);
      write_output(pass, values, output, row, at_once, rows.is_generated(row));
    }
  });
}

}  // namespace lockstep
