#include "engine/runtime/product_step.h"

#include <algorithm>

#include "engine/runtime/form_writer.h"

namespace lockstep {
namespace {

// Panels of a unit: two give the 32 columns in which what follows takes its results.
constexpr size_t kUnitPanels = kChunkColumns / kPanelRows;

// Up to so many rows a product reads weights for most of its time.
constexpr size_t kStaticRows = 16;

// Rows of a task: as many as share the unpacking of a weight; and what the factors' place is for.
constexpr size_t kTaskRows = 256;
constexpr size_t kTaskRowsLeast = 64;
// Units of a task, and how many tasks each worker should find: with few, the last ones are waited
// for; with many, each reads its activations again.
constexpr size_t kTaskUnits = 16;
constexpr size_t kTasksPerWorker = 4;

// The panels of a step in units, as one list. Where a finish follows, a unit has the same panels of
// every part.
class UnitList {
 public:
  explicit UnitList(const MatmulStep& step)
      : step_(step), joint_(!std::holds_alternative<std::monostate>(step.finish)) {
    for (size_t part = 0; part < list_count(); ++part) count_ += units_of(part);
  }

  size_t count() const { return count_; }

  // An even share of the bytes.
  Range share_of(const Pass& pass) const {
    size_t bytes = 0;
    for (size_t part = 0; part < list_count(); ++part) bytes += units_of(part) * unit_bytes(part);
    const Range mine = share(Range{0, bytes}, pass.worker, pass.worker_count);
    return {unit_at(mine.begin), unit_at(mine.end)};
  }

  // Calls work(first part, last part + 1, panels) for the units [units).
  template <typename Work>
  void for_each(Range units, Work work) const {
    size_t before = 0;
    for (size_t part = 0; part < list_count(); ++part) {
      const size_t begin = std::max(units.begin, before);
      const size_t end = std::min(units.end, before + units_of(part));
      if (begin < end) {
        const Range panels = {(begin - before) * kUnitPanels,
                              std::min((end - before) * kUnitPanels, panels_of(part))};
        work(part, joint_ ? step_.parts.size() : part + 1, panels);
      }
      before += units_of(part);
    }
  }

 private:
  size_t list_count() const {
    return joint_ ? std::min<size_t>(1, step_.parts.size()) : step_.parts.size();
  }
  size_t panels_of(size_t part) const { return step_.parts[part].matrix.panel_count(); }
  size_t units_of(size_t part) const { return (panels_of(part) + kUnitPanels - 1) / kUnitPanels; }
  size_t unit_bytes(size_t part) const {
    const PackedMatrix& matrix = step_.parts[part].matrix;
    return kUnitPanels * panel_bytes(matrix.format, matrix.columns);
  }
  size_t unit_at(size_t byte) const {
    size_t unit = 0;
    for (size_t part = 0; part < list_count(); ++part) {
      const size_t bytes = units_of(part) * unit_bytes(part);
      if (byte < bytes) return unit + (byte + unit_bytes(part) - 1) / unit_bytes(part);
      byte -= bytes;
      unit += units_of(part);
    }
    return unit;
  }

  const MatmulStep& step_;
  bool joint_;
  size_t count_ = 0;
};

// One part's panels for rows that share a form of the input. `factors`: the first row's, or none.
MatmulArguments arguments_of(const MatmulStep& step, const MatmulPart& part, Range panels,
                             Range rows, ActivationForm form, const float* factors,
                             const Pass& pass) {
  const FormBuffer& input = step.input[form];
  return {.matrix = part.matrix,
          .panel_begin = panels.begin,
          .panel_end = panels.end,
          .input = input.rows + rows.begin * input.stride_bytes,
          .input_stride_bytes = input.stride_bytes,
          .token_count = rows.size(),
          .output = part.output + rows.begin * part.output_stride,
          .output_stride = part.output_stride,
          .token_scales = factors,
          .bias = part.bias,
          .accumulate = part.accumulate,
          .panel_streams = pass.panel_streams};
}

void multiply(const MatmulStep& step, const MatmulPart& part, Range panels, Range rows,
              ActivationForm form, const float* factors, const Pass& pass) {
  if (rows.empty()) return;
  const MatmulKernel kernel = matmul_kernel(pass.kernels, part.matrix.format, form);
  kernel(arguments_of(step, part, panels, rows, form, factors, pass));
}

void multiply(const MatmulStep& step, const MatmulPart& part, Range panels, Range rows,
              const float* factors, const Pass& pass) {
  if (part.remote) {
    const size_t columns =
        std::min(panels.end * kPanelRows, part.matrix.rows) - panels.begin * kPanelRows;
    pass.counters.exchange_bytes.add(rows.size() * columns * sizeof(float));
  }
  if (part.forms.prompted == part.forms.generated) {
    return multiply(step, part, panels, rows, part.forms.prompted, factors, pass);
  }
  const size_t border = std::clamp(row_count(step.rows, pass).generated, rows.begin, rows.end);
  multiply(step, part, panels, {rows.begin, border}, part.forms.generated, factors, pass);
  multiply(step, part, panels, {border, rows.end}, part.forms.prompted,
           factors == nullptr ? nullptr : factors + (border - rows.begin), pass);
}

void finish_gate(const MatmulStep& step, const GateFinish& finish, Range columns, Range rows,
                 const Pass& pass) {
  constexpr size_t kStretchColumns = 512;
  alignas(64) float values[kStretchColumns];
  const MatmulPart& gate = step.parts[0];
  const MatmulPart& up = step.parts[1];
  for (size_t row = rows.begin; row < rows.end; ++row) {
    const bool generated = row < row_count(step.rows, pass).generated;
    for (size_t begin = columns.begin; begin < columns.end; begin += kStretchColumns) {
      const Range stretch = {begin, std::min(columns.end, begin + kStretchColumns)};
      pass.kernels.silu_multiply(gate.output + row * gate.output_stride + begin,
                                 up.output + row * up.output_stride + begin, stretch.size(),
                                 values);
      write_forms(pass, values, finish.output, row, stretch, generated);
    }
  }
}

Range columns_of(Range panels, const MatmulPart& part) {
  return {panels.begin * kPanelRows, std::min(panels.end * kPanelRows, part.matrix.rows)};
}

void finish(const MatmulStep& step, Range panels, Range rows, const Pass& pass) {
  const MatmulPart& first = step.parts.front();
  const Range columns = columns_of(panels, first);
  if (const auto* gate = std::get_if<GateFinish>(&step.finish)) {
    finish_gate(step, *gate, columns, rows, pass);
  } else if (const auto* residual = std::get_if<ResidualFinish>(&step.finish)) {
    for (const NormOutput& norm : residual->norms) {
      write_norm(pass, first.output, first.output_stride, norm, rows, columns);
    }
  }
}

// Whether tokens of this kind go into a gate, and what follows on, as kBf16 alone.
bool is_gated_in_bf16(const MatmulStep& step, const GateFinish& finish, bool generated) {
  for (const MatmulPart& part : step.parts) {
    const ProductForms& forms = part.forms;
    if ((generated ? forms.generated : forms.prompted) != ActivationForm::kBf16) return false;
  }
  for (size_t form = 0; form < kActivationFormCount; ++form) {
    const FormBuffer& buffer = finish.output.forms.buffers[form];
    const bool is_bf16 = static_cast<ActivationForm>(form) == ActivationForm::kBf16;
    if ((generated ? buffer.generated : buffer.prompted) != is_bf16) return false;
  }
  return true;
}

// The first of the rows that one kernel takes from a gate's input to its output: the others need
// one for each of its operations. rows.end if there is no such kernel, or few rows for it.
size_t first_gated(const MatmulStep& step, const GateFinish& finish, Range rows, const Pass& pass) {
  const Format format = step.parts[0].matrix.format;
  if (step.parts[1].matrix.format != format) return rows.end;
  if (gated_kernel(pass.kernels, format) == nullptr) return rows.end;
  if (!is_gated_in_bf16(step, finish, /*generated=*/false)) return rows.end;
  size_t first = rows.begin;
  if (!is_gated_in_bf16(step, finish, /*generated=*/true)) {
    first = std::clamp(row_count(step.rows, pass).generated, rows.begin, rows.end);
  }
  return rows.end - first > kStaticRows ? first : rows.end;
}

void compute_gated(const MatmulStep& step, const GateFinish& finish, Range panels, Range rows,
                   const float* factors, const Pass& pass) {
  const auto arguments = [&](const MatmulPart& part) {
    return arguments_of(step, part, panels, rows, ActivationForm::kBf16, factors, pass);
  };
  const MatmulPart& gate = step.parts[0];
  const FormBuffer& output = finish.output.forms[ActivationForm::kBf16];
  gated_kernel(pass.kernels,
               gate.matrix.format)({.gate = arguments(gate),
                                    .up = arguments(step.parts[1]),
                                    .output = output.rows + rows.begin * output.stride_bytes +
                                              finish.output.first_column * sizeof(uint16_t),
                                    .output_stride_bytes = output.stride_bytes});
  complete_bf16(pass, finish.output, rows, columns_of(panels, gate));
}

// The units [units) for the rows [rows), of which there are at most kTaskRows.
void compute(const MatmulStep& step, const UnitList& list, Range units, Range rows,
             const Pass& pass) {
  float factors[kTaskRows];
  const bool normed = step.norm.chunks.sums != nullptr;
  if (normed) norm_factors(step.norm, rows, factors);
  list.for_each(units, [&](size_t part_begin, size_t part_end, Range panels) {
    const auto* gate = std::get_if<GateFinish>(&step.finish);
    const size_t gated = gate == nullptr ? rows.end : first_gated(step, *gate, rows, pass);
    const Range others = {rows.begin, gated};
    for (size_t part = part_begin; part < part_end; ++part) {
      multiply(step, step.parts[part], panels, others, normed ? factors : nullptr, pass);
    }
    finish(step, panels, others, pass);
    if (gated == rows.end) return;
    compute_gated(step, *gate, panels, {gated, rows.end},
                  normed ? factors + (gated - rows.begin) : nullptr, pass);
  });
}

// How units and rows are cut into tasks: the same for all workers.
struct TaskGrid {
  size_t units = kTaskUnits;
  size_t rows = kTaskRows;
  size_t unit_tasks = 0;
  size_t row_tasks = 0;

  TaskGrid(size_t unit_count, size_t row_count, size_t worker_count) {
    const auto count = [&] {
      unit_tasks = (unit_count + units - 1) / units;
      row_tasks = (row_count + rows - 1) / rows;
      return unit_tasks * row_tasks;
    };
    while (count() < kTasksPerWorker * worker_count && units > 1) units /= 2;
    while (count() < kTasksPerWorker * worker_count && rows > kTaskRowsLeast) rows /= 2;
  }
};

}  // namespace

void run_product(const MatmulStep& step, const Pass& pass, TaskCounter& tasks) {
  const size_t rows = row_count(step.rows, pass).all;
  const UnitList list(step);
  if (rows == 0 || list.count() == 0) return;
  if (rows <= kStaticRows) {
    return compute(step, list, list.share_of(pass), {0, rows}, pass);
  }
  const TaskGrid grid(list.count(), rows, pass.worker_count);
  for (size_t task = tasks.take(); task < grid.unit_tasks * grid.row_tasks; task = tasks.take()) {
    const size_t unit = task % grid.unit_tasks * grid.units;
    const size_t row = task / grid.unit_tasks * grid.rows;
    compute(step, list, {unit, std::min(list.count(), unit + grid.units)},
            {row, std::min(rows, row + grid.rows)}, pass);
  }
}

}  // namespace lockstep
