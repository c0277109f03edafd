#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/base/check.h"
#include "engine/runtime/node/form_writer.h"
#include "engine/runtime/node/product_rows.h"
#include "engine/runtime/node/steps.h"

namespace lockstep {
namespace {

// An expert has no more rows of few tokens than are multiplied at once.
static_assert(kStaticRows <= kExpertRows);

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

size_t block_count(Range rows) {
  return (rows.size() + kExpertRows - 1) / kExpertRows;
}

void choose_experts(const RouteStep& step, size_t token, const Pass& pass) {
  const Routing& routing = step.routing;
  const float* scores = pass.at(step.scores) + token * step.score_stride;
  uint32_t* chosen = pass.at(routing.chosen) + token * routing.chosen_count;
  float* weights = pass.at(routing.weights) + token * routing.chosen_count;
  size_t count = 0;  // of those chosen so far, the largest score first
  for (uint32_t expert = 0; expert < routing.expert_count; ++expert) {
    const auto is_above = [&](size_t place) { return scores[expert] > scores[chosen[place]]; };
    if (count < routing.chosen_count) {
      ++count;
    } else if (!is_above(count - 1)) {
      continue;
    }
    size_t place = count - 1;
    for (; place > 0 && is_above(place - 1); --place) chosen[place] = chosen[place - 1];
    chosen[place] = expert;
  }
  // In f64, whose rounding to f32 hides how the library's exponential rounds.
  const double most = scores[chosen[0]];
  const auto weight_of = [&](size_t place) {
    return std::exp(static_cast<double>(scores[chosen[place]]) - most);
  };
  double sum = 0;
  for (size_t place = 0; place < routing.chosen_count; ++place) sum += weight_of(place);
  for (size_t place = 0; place < routing.chosen_count; ++place) {
    weights[place] = static_cast<float>(weight_of(place) / sum);
  }
}

// Counts, adds up, and then puts each row behind its expert's last one.
void order_rows(const Routing& routing, const Pass& pass) {
  const uint32_t* const chosen = pass.at(routing.chosen);
  const float* const weights = pass.at(routing.weights);
  uint32_t* const begins = pass.at(routing.row_begin);
  uint32_t* const row_tokens = pass.at(routing.row_tokens);
  float* const row_weights = pass.at(pass.areas().row_weights);
  // Until the end the places of the experts' next rows.
  uint32_t* const ends = pass.at(pass.areas().generated_end);
  std::fill_n(ends, routing.expert_count, 0U);
  const size_t choices = pass.batch.tokens.size() * routing.chosen_count;
  for (size_t choice = 0; choice < choices; ++choice) ++ends[chosen[choice]];
  uint32_t begin = 0;
  for (size_t expert = 0; expert < routing.expert_count; ++expert) {
    begins[expert] = begin;
    begin += std::exchange(ends[expert], begin);
  }
  begins[routing.expert_count] = begin;
  for (size_t choice = 0; choice < choices; ++choice) {
    const uint32_t row = ends[chosen[choice]]++;
    row_tokens[row] = static_cast<uint32_t>(choice / routing.chosen_count);
    row_weights[row] = weights[choice];
  }
  for (size_t expert = 0; expert < routing.expert_count; ++expert) {
    const uint32_t* const first = row_tokens + begins[expert];
    const uint32_t* const last = row_tokens + begins[expert + 1];
    const uint32_t* const prompted = std::lower_bound(first, last, pass.batch.generated_tokens);
    ends[expert] = static_cast<uint32_t>(prompted - row_tokens);
  }
}

MatmulPart part_of(const ExpertPart& experts, size_t expert) {
  return {.matrix = experts.matrices[expert],
          .forms = experts.forms,
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
    const bool in_order = tokens[count - 1] - tokens[0] == count - 1;
    const size_t place = pass_.worker * kExpertRows;
    if (rows != gathered_) {
      gathered_ = rows;
      for (size_t index = 0; index < count; ++index) {
        const size_t token = tokens[index];
        if (normed) norm_factors(pass_, step_.norm, {token, token + 1}, factors_ + index);
        if (!in_order) copy_row(token, place + index, rows.begin + index < generated_end);
      }
    }
    return {.rows = rows,
            .generated_end = generated_end,
            .input = in_order ? step_.input : step_.gathered->rows,
            .input_begin = in_order ? tokens[0] : place,
            .factors = normed ? factors_ : nullptr};
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
            .factors = pass.at(pass.areas().row_weights) + rows.begin},
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
                     .factors = pass.at(pass.areas().row_weights) + rows.begin},
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
    for_each_block(rows_of(step.routing, expert, pass),
                   [&](Range rows) { add_rows(step, expert, panels, rows, pass); });
  }
  for (const NormOutput& norm : step.finish.norms) {
    write_norm(pass, pass.at(step.down.output), step.down.output_stride, norm, {0, tokens},
               columns);
  }
}

}  // namespace

void run_route(const RouteStep& step, const Pass& pass) {
  if (!step.scores) return;
  const size_t tokens = pass.batch.tokens.size();
  // One worker is done with few tokens before others could have helped it.
  const bool alone = tokens <= kStaticRows;
  const Range mine = alone ? Range{0, pass.worker == 0 ? tokens : 0}
                           : share(Range{0, tokens}, pass.worker, pass.worker_count);
  for (size_t token = mine.begin; token < mine.end; ++token) choose_experts(step, token, pass);
  if (!alone) meet_rank(pass);
  if (pass.worker == 0) order_rows(step.routing, pass);
}

void run_expert_product(const ExpertProductStep& step, const Pass& pass, TaskCounter& tasks) {
  run_products(step, pass, tasks);
}

void run_expert_gate(const ExpertGateStep& step, const Pass& pass, TaskCounter& tasks) {
  run_products(step, pass, tasks);
}

void run_expert_sum(const ExpertSumStep& step, const Pass& pass, TaskCounter& tasks) {
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
