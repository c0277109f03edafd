#include "engine/kernels/gpu_panel.h"

#include <algorithm>

#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

size_t whole_steps(size_t rows) {
  return round_up(rows, kGpuPanelStep);
}

// `count` things in parts of at most `most`, all but the last of the same size.
size_t even_part(size_t count, size_t most) {
  return whole_steps(divide_up(count, divide_up(count, most)));
}

}  // namespace

size_t gpu_panel_rows_max(size_t columns, const GpuPanelLimits& limits) {
  // Twice, so that a gate's rows and those that it gates fit side by side.
  constexpr size_t kLeast = 2 * kGpuPanelStep;
  const size_t row_bytes = std::max<size_t>(1, gpu_panel_columns(columns)) * sizeof(uint16_t);
  const size_t rows = std::min(limits.rows, limits.bytes / row_bytes);
  return std::max(kLeast, rows / kLeast * kLeast);
}

std::vector<GpuPanel> gpu_panels(std::span<const size_t> part_rows, size_t columns, bool gate,
                                 const GpuPanelLimits& limits) {
  std::vector<GpuPanel> panels;
  const size_t most = gpu_panel_rows_max(columns, limits);
  size_t total = 0;
  for (const size_t rows : part_rows) total += whole_steps(rows);
  if (total == 0) return panels;
  if (gate) {
    const size_t rows = whole_steps(part_rows[0]);
    const size_t each = even_part(rows, most / 2);
    for (size_t begin = 0; begin < rows; begin += each) {
      const size_t count = std::min(each, rows - begin);
      panels.push_back({.row_begin = {begin, begin}, .row_count = {count, count}});
    }
    return panels;
  }
  const size_t each = even_part(total, most);
  size_t left = 0;  // in the last panel
  for (size_t part = 0; part < part_rows.size(); ++part) {
    const size_t rows = whole_steps(part_rows[part]);
    for (size_t begin = 0; begin < rows;) {
      if (left == 0) {
        panels.emplace_back();
        left = each;
      }
      const size_t count = std::min(left, rows - begin);
      panels.back().row_begin[part] = begin;
      panels.back().row_count[part] = count;
      begin += count;
      left -= count;
    }
  }
  return panels;
}

}  // namespace lockstep
