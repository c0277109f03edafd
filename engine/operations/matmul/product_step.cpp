#include <algorithm>
#include <iterator>

#include "engine/base/format.h"
#include "engine/operations/matmul/matmul_step.h"
#include "engine/operations/matmul/product_rows.h"
#include "engine/operations/step_text.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/pass.h"

namespace lockstep {
namespace {

// Rows of a task: as many as share the unpacking of a weight; and what the factors' place is for.
constexpr size_t kTaskRows = kMostProductRows;
constexpr size_t kTaskRowsLeast = 64;
constexpr size_t kTaskUnits = 16;

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
        work(part, joint_ ? step_.parts.size() : part + 1,
             panels_of({begin - before, end - before}, step_.parts[part].matrix));
      }
      before += units_of(part);
    }
  }

 private:
  size_t list_count() const {
    return joint_ ? std::min<size_t>(1, step_.parts.size()) : step_.parts.size();
  }
  size_t units_of(size_t part) const { return unit_count(step_.parts[part].matrix); }
  size_t unit_bytes(size_t part) const {
    const PlannedMatrix& matrix = step_.parts[part].matrix;
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

void finish(const MatmulStep& step, Range panels, Range rows, const Pass& pass) {
  const auto* residual = std::get_if<ResidualFinish>(&step.finish);
  if (residual == nullptr) return;
  const MatmulPart& part = step.parts.front();
  for (const NormOutput& norm : residual->norms) {
    write_norm(pass, pass.at(part.output), part.output_stride, norm, rows,
               columns_of(panels, part.matrix));
  }
}

// The units [units) for the rows [rows), of which there are at most kTaskRows.
void compute(const MatmulStep& step, const UnitList& list, Range units, Range rows,
             const Pass& pass) {
  float factors[kTaskRows];
  const bool normed{step.norm.chunks.sums};
  if (normed) norm_factors(pass, step.norm, rows, factors);
  const ProductRows product = {.rows = rows,
                               .generated_end = row_count(step.rows, pass).generated,
                               .input = step.input,
                               .input_begin = rows.begin,
                               .factors = normed ? factors : nullptr};
  const auto* gate = std::get_if<GateFinish>(&step.finish);
  list.for_each(units, [&](size_t part_begin, size_t part_end, Range panels) {
    if (gate != nullptr && step.parts.size() == 1) {
      return multiply_activated(step.parts[0], gate->activation, gate->output, panels, product,
                                pass);
    }
    if (gate != nullptr) {
      return multiply_gate({step.parts[0], step.parts[1]}, gate->activation, gate->output, panels,
                           product, pass);
    }
    for (size_t part = part_begin; part < part_end; ++part) {
      multiply(step.parts[part], panels, product, pass);
    }
    finish(step, panels, rows, pass);
  });
}

// The cut of units and rows into tasks: the same for all workers.
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

std::string text_of(const GateFinish& finish) {
  return fmt::format(" gate {}{}", text_of(finish.activation), text_of(finish.output));
}

}  // namespace

std::string text_of(const ResidualFinish& finish) {
  std::string all = " residual";
  for (const NormOutput& norm : finish.norms) all += text_of(norm);
  return all;
}

std::string text_of(const MatmulStep& step) {
  std::string all = fmt::format("product of {} input {}{}", name_in(kRowNames, step.rows),
                                text_of(step.input), text_of(step.norm));
  for (const MatmulPart& part : step.parts) {
    fmt::format_to(std::back_inserter(all), " part ({} {}{} bias {} to {}{}{})",
                   text_of(part.matrix), text_of(part.forms),
                   part.first_column == 0 ? "" : fmt::format(" from column {}", part.first_column),
                   text_of(part.bias), text_of(part.output, part.output_stride),
                   part.accumulate ? " accumulate" : "", part.remote ? " remote" : "");
  }
  return all + std::visit([](const auto& finish) { return text_of(finish); }, step.finish);
}

void run(const MatmulStep& step, const Pass& pass, TaskCounter& tasks) {
  const size_t rows = row_count(step.rows, pass).all;
  const UnitList list(step);
  if (rows == 0 || list.count() == 0) return;
  if (rows <= kStaticRows) {
    await_rows(pass, rows);
    return compute(step, list, list.share_of(pass), {0, rows}, pass);
  }
  const TaskGrid grid(list.count(), rows, pass.worker_count);
  for (size_t task = tasks.take(); task < grid.unit_tasks * grid.row_tasks; task = tasks.take()) {
    const size_t unit = task % grid.unit_tasks * grid.units;
    const Range units = {unit, std::min(list.count(), unit + grid.units)};
    const size_t row = task / grid.unit_tasks * grid.rows;
    const Range task_rows = {row, std::min(rows, row + grid.rows)};
    await_rows(pass, task_rows.end);
    compute(step, list, units, task_rows, pass);
    carry_rows(pass, task_rows, units.size(), list.count());
  }
}

}  // namespace lockstep
