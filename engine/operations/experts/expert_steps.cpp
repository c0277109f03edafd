#include "engine/operations/experts/expert_steps.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "engine/base/check.h"
#include "engine/base/format.h"
#include "engine/base/range.h"
#include "engine/operations/matmul/product_rows.h"
#include "engine/operations/step_text.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/pass.h"

namespace lockstep {
namespace {

// An expert has no more rows of few tokens than are multiplied at once.
static_assert(kStaticRows <= kExpertRows);

static_assert(kExpertRows <= kMostProductRows);

Range rows_of(const Routing& routing, size_t expert, const Pass& pass) {
  const uint32_t* const begins = pass.at(routing.row_begin);
  return {begins[expert], begins[expert + 1]};
}

// Calls work(rows) for the expert's rows, at most kExpertRows at a time.
template <typename Work>
void for_each_block(Range rows, Work work) {
  for (size_t begin = rows.begin; begin < rows.end; begin += kExpertRows) {
    work(Range{begin, std::min(rows.end, begin + kExpertRows)});
  }
}

// By row: the weights of its token's choice.
const float* row_weights(const Pass& pass) {
  return pass.at(pass.areas().row_weights);
}

size_t block_count(Range rows) {
  return (rows.size() + kExpertRows - 1) / kExpertRows;
}

ArenaOffset<const float> bias_of(const ExpertPart& experts, size_t expert) {
  return experts.biases.empty() ? ArenaOffset<const float>() : experts.biases[expert];
}

MatmulPart part_of(const ExpertPart& experts, size_t expert) {
  return {.matrix = experts.matrices[expert],
          .forms = experts.forms,
          .bias = bias_of(experts, expert),
          .output = experts.output,
          .output_stride = experts.output_stride};
}

// The step's products of one expert's rows, at most kExpertRows, and what follows on them.
void compute_expert(const ExpertGateStep& step, size_t expert, Range units,
                    const ProductRows& product, const Pass& pass) {
  const MatmulPart gate = part_of(step.gate, expert);
  const MatmulPart up = part_of(step.up, expert);
  multiply_gate({gate, up}, step.activation, step.output, panels_of(units, gate.matrix), product,
                pass);
}

void compute_expert(const ExpertProductStep& step, size_t expert, Range units,
                    const ProductRows& product, const Pass& pass) {
  const MatmulPart part = part_of(step.part, expert);
  multiply(part, panels_of(units, part.matrix), product, pass);
}

const PlannedMatrix& first_matrix(const ExpertGateStep& step) {
  return step.gate.matrices.front();
}

const PlannedMatrix& first_matrix(const ExpertProductStep& step) {
  return step.part.matrices.front();
}

// One worker's way through an ExpertGateStep or an ExpertProductStep.
template <typename Step>
class ExpertProducts {
 public:
  ExpertProducts(const Step& step, const Pass& pass)
      : step_(step), pass_(pass), units_(unit_count(first_matrix(step))) {
    const size_t workers = step.gathered ? step.gathered->workers : 0;
    CHECK(units_ == 0 || pass.worker < workers, "worker {} of {}", pass.worker, workers);
  }

  // This worker's share of the units of all experts that have rows.
  void run_share() {
    if (units_ == 0) return;
    size_t busy = 0;
    for (size_t expert = 0; expert < step_.routing.expert_count; ++expert) {
      if (!rows_of(expert).empty()) ++busy;
    }
    const Range mine = share(Range{0, busy * units_}, pass_.worker, pass_.worker_count);
    size_t before = 0;
    for (size_t expert = 0; expert < step_.routing.expert_count; ++expert) {
      const Range rows = rows_of(expert);
      if (rows.empty()) continue;
      const size_t begin = std::max(mine.begin, before);
      const size_t end = std::min(mine.end, before + units_);
      if (begin < end) compute(expert, {begin - before, end - before}, rows);
      before += units_;
    }
  }

  // Tasks are an expert's units for a block of its rows. They are numbered expert after expert.
  void run_tasks(TaskCounter& tasks) {
    if (units_ == 0) return;
    size_t blocks = 0;
    for (size_t expert = 0; expert < step_.routing.expert_count; ++expert) {
      blocks += block_count(rows_of(expert));
    }
    size_t parts = 1;
    while (parts < units_ && blocks * parts < kTasksPerWorker * pass_.worker_count) parts *= 2;
    const size_t part_units = (units_ + parts - 1) / parts;
    parts = (units_ + part_units - 1) / part_units;
    size_t expert = 0;
    size_t before = 0;  // tasks of the experts before
    for (size_t task = tasks.take(); task < blocks * parts; task = tasks.take()) {
      while (task >= before + block_count(rows_of(expert)) * parts) {
        before += block_count(rows_of(expert++)) * parts;
      }
      const Range all = rows_of(expert);
      const size_t first = all.begin + (task - before) / parts * kExpertRows;
      const size_t unit = (task - before) % parts * part_units;
      compute(expert, {unit, std::min(units_, unit + part_units)},
              {first, std::min(all.end, first + kExpertRows)});
    }
  }

 private:
  Range rows_of(size_t expert) const { return lockstep::rows_of(step_.routing, expert, pass_); }

  // The rows' inputs and factors, for as long as no others are wanted.
  ProductRows gather(size_t expert, Range rows) {
    const uint32_t* tokens = pass_.at(step_.routing.row_tokens) + rows.begin;
    const uint32_t generated_end = pass_.at(pass_.areas().generated_end)[expert];
    const size_t count = rows.size();
    const bool normed{step_.norm.chunks.sums};
    const float* const weights =
        step_.routing.weighs_inputs ? row_weights(pass_) + rows.begin : nullptr;
    const bool in_order = tokens[count - 1] - tokens[0] == count - 1;
    const size_t place = pass_.worker * kExpertRows;
    if (rows != gathered_) {
      gathered_ = rows;
      for (size_t index = 0; index < count; ++index) {
        const size_t token = tokens[index];
        if (normed) norm_factors(pass_, step_.norm, {token, token + 1}, factors_ + index);
        if (weights != nullptr) factors_[index] = weights[index] * (normed ? factors_[index] : 1);
        if (!in_order) copy_row(token, place + index, rows.begin + index < generated_end);
      }
    }
    return {.rows = rows,
            .generated_end = generated_end,
            .input = in_order ? step_.input : step_.gathered->rows,
            .input_begin = in_order ? tokens[0] : place,
            .factors = normed || weights != nullptr ? factors_ : nullptr};
  }

  void copy_row(size_t token, size_t place, bool generated) {
    for (size_t form = 0; form < kActivationFormCount; ++form) {
      const FormBuffer& to = step_.gathered->rows.buffers[form];
      if (!(generated ? to.generated : to.prompted)) continue;
      const FormBuffer& from = step_.input.buffers[form];
      std::memcpy(pass_.at(to.rows) + place * to.stride_bytes,
                  pass_.at(from.rows) + token * from.stride_bytes,
                  std::min(to.stride_bytes, from.stride_bytes));
    }
  }

  // At most kExpertRows rows.
  void compute(size_t expert, Range units, Range rows) {
    compute_expert(step_, expert, units, gather(expert, rows), pass_);
  }

  const Step& step_;
  const Pass& pass_;
  size_t units_;
  Range gathered_;
  float factors_[kExpertRows];
};

template <typename Step>
void run_products(const Step& step, const Pass& pass, TaskCounter& tasks) {
  ExpertProducts products(step, pass);
  if (pass.batch.tokens.size() <= kStaticRows) return products.run_share();
  products.run_tasks(tasks);
}

// The factors of a sum's rows; nullptr: their inputs have been weighed.
const float* sum_factors(const ExpertSumStep& step, Range rows, const Pass& pass) {
  return step.routing.weighs_inputs ? nullptr : row_weights(pass) + rows.begin;
}

MatmulPart down_part(const ExpertSumStep& step, size_t expert) {
  return {.matrix = step.down.matrices[expert],
          .forms = step.down.forms,
          .output = step.down.output,
          .output_stride = step.down.output_stride,
          .accumulate = true};
}

// At most kExpertSumColumns columns of rows whose tokens do not follow one another: multiplied
// together, and then added to each token's row.
void add_scattered(const ExpertSumStep& step, size_t expert, Range panels, Range rows,
                   const Pass& pass) {
  MatmulPart part = down_part(step, expert);
  const Range columns = columns_of(panels, part.matrix);
  const auto& places = std::get<WorkerProducts>(step.products);
  part.matrix.data =
      part.matrix.data + panels.begin * panel_bytes(part.matrix.format, part.matrix.columns);
  part.matrix.rows = columns.size();
  part.output = places.rows + pass.worker * kExpertRows * places.stride;
  part.output_stride = places.stride;
  part.accumulate = false;
  const size_t generated_end = pass.at(pass.areas().generated_end)[expert];
  multiply(part, {0, panels.size()},
           {.rows = {0, rows.size()},
            .generated_end = generated_end - std::min(generated_end, rows.begin),
            .input = step.input,
            .input_begin = rows.begin,
            .factors = sum_factors(step, rows, pass)},
           pass);
  const uint32_t* tokens = pass.at(step.routing.row_tokens) + rows.begin;
  const float* const products = pass.at(part.output);
  float* const sums = pass.at(step.down.output);
  for (size_t row = 0; row < rows.size(); ++row) {
    const float* from = products + row * places.stride;
    float* to = sums + tokens[row] * step.down.output_stride + columns.begin;
    for (size_t column = 0; column < columns.size(); ++column) to[column] += from[column];
  }
}

// Adds the expert's bias to the sums of its rows' tokens, times the rows' weights: behind the
// products, which have been multiplied with these.
void add_bias(const ExpertSumStep& step, size_t expert, Range columns, Range rows,
              const Pass& pass) {
  const float* const bias = pass.at(bias_of(step.down, expert));
  if (bias == nullptr) return;
  const uint32_t* const tokens = pass.at(step.routing.row_tokens);
  const float* const factors = sum_factors(step, rows, pass);
  for (size_t row = rows.begin; row < rows.end; ++row) {
    float* const sums = pass.at(step.down.output) + tokens[row] * step.down.output_stride;
    const float factor = factors == nullptr ? 1 : factors[row - rows.begin];
    for (size_t column = columns.begin; column < columns.end; ++column) {
      sums[column] += factor * bias[column];
    }
  }
}

// The products of one expert's rows, added to their tokens' rows.
void add_rows(const ExpertSumStep& step, size_t expert, Range panels, Range rows,
              const Pass& pass) {
  const uint32_t* tokens = pass.at(step.routing.row_tokens) + rows.begin;
  const size_t count = rows.size();
  const size_t first = tokens[0];
  if (tokens[count - 1] - first == count - 1) {
    return multiply(down_part(step, expert), panels,
                    {.rows = {first, first + count},
                     .generated_end = pass.batch.generated_tokens,
                     .input = step.input,
                     .input_begin = rows.begin,
                     .factors = sum_factors(step, rows, pass)},
                    pass);
  }
  constexpr size_t kPanels = kExpertSumColumns / kPanelRows;
  for (size_t begin = panels.begin; begin < panels.end; begin += kPanels) {
    add_scattered(step, expert, {begin, std::min(panels.end, begin + kPanels)}, rows, pass);
  }
}

// The columns of these units of all tokens' sums: expert after expert, so that memory is read in
// long stretches.
void add_experts(const ExpertSumStep& step, Range units, const Pass& pass) {
  if (units.empty()) return;
  const PlannedMatrix& matrix = step.down.matrices.front();
  const Range panels = panels_of(units, matrix);
  const Range columns = columns_of(panels, matrix);
  const size_t tokens = pass.batch.tokens.size();
  if (!step.accumulate) {
    for (size_t token = 0; token < tokens; ++token) {
      std::fill_n(pass.at(step.down.output) + token * step.down.output_stride + columns.begin,
                  columns.size(), 0.0F);
    }
  }
  for (size_t expert = 0; expert < step.routing.expert_count; ++expert) {
    for_each_block(rows_of(step.routing, expert, pass), [&](Range rows) {
      add_rows(step, expert, panels, rows, pass);
      add_bias(step, expert, columns, rows, pass);
    });
  }
  for (const NormOutput& norm : step.finish.norms) {
    write_norm(pass, pass.at(step.down.output), step.down.output_stride, norm, {0, tokens},
               columns);
  }
}

std::string text_of(const ExpertPart& part) {
  std::string all =
      fmt::format("({} to {} of", text_of(part.forms), text_of(part.output, part.output_stride));
  for (const PlannedMatrix& matrix : part.matrices) {
    fmt::format_to(std::back_inserter(all), " {}", text_of(matrix));
  }
  for (const ArenaOffset<const float>& bias : part.biases) {
    fmt::format_to(std::back_inserter(all), " bias {}", text_of(bias));
  }
  return all + ")";
}

std::string text_of(const std::optional<GatheredRows>& gathered) {
  return gathered
             ? fmt::format(" gathered {} of {} workers", text_of(gathered->rows), gathered->workers)
             : "";
}

std::string text_of(const WorkerProducts& products) {
  return fmt::format(" products {} of {} workers", text_of(products.rows, products.stride),
                     products.workers);
}

std::string text_of(const RowProducts& products) {
  return fmt::format(" products {} by row", text_of(products.rows, products.stride));
}

}  // namespace

std::string text_of(const ExpertProductStep& step) {
  return fmt::format("experts' product input {}{}{}{} {}", text_of(step.input), text_of(step.norm),
                     text_of(step.routing), text_of(step.gathered), text_of(step.part));
}

std::string text_of(const ExpertGateStep& step) {
  return fmt::format("experts' gate input {}{}{}{} gate {} up {} {}to {}", text_of(step.input),
                     text_of(step.norm), text_of(step.routing), text_of(step.gathered),
                     text_of(step.gate), text_of(step.up), text_of(step.activation),
                     text_of(step.output));
}

std::string text_of(const ExpertSumStep& step) {
  return fmt::format("experts' sum input {}{} down {}{}{}{}", text_of(step.input),
                     text_of(step.routing), text_of(step.down),
                     step.accumulate ? " accumulate" : "",
                     std::visit([](const auto& kind) { return text_of(kind); }, step.products),
                     text_of(step.finish));
}

void run(const ExpertProductStep& step, const Pass& pass, TaskCounter& tasks) {
  run_products(step, pass, tasks);
}

void run(const ExpertGateStep& step, const Pass& pass, TaskCounter& tasks) {
  run_products(step, pass, tasks);
}

void run(const ExpertSumStep& step, const Pass& pass, TaskCounter& tasks) {
  const size_t units = unit_count(step.down.matrices.front());
  if (units == 0) return;
  const size_t workers = std::get<WorkerProducts>(step.products).workers;
  CHECK(pass.worker < workers, "worker {} of {}", pass.worker, workers);
  if (pass.batch.tokens.size() <= kStaticRows) {
    return add_experts(step, share(Range{0, units}, pass.worker, pass.worker_count), pass);
  }
  size_t task_units = kExpertSumColumns / kChunkColumns;
  while (task_units > 1 && units < task_units * kTasksPerWorker * pass.worker_count) {
    task_units /= 2;
  }
  for (size_t unit = tasks.take() * task_units; unit < units; unit = tasks.take() * task_units) {
    add_experts(step, {unit, std::min(units, unit + task_units)}, pass);
  }
}

}  // namespace lockstep
