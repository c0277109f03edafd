#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "engine/base/check.h"
#include "engine/pass/form_writer.h"
#include "engine/runtime/node/product_rows.h"
#include "engine/runtime/node/steps.h"

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

// The places of the largest of the values, the largest first, of equal ones the first one.
template <typename Value>
void find_largest(const Value* values, size_t value_count, uint32_t* found, size_t most) {
  size_t count = 0;  // of those found so far
  for (uint32_t candidate = 0; candidate < value_count; ++candidate) {
    const auto is_above = [&](size_t place) { return values[candidate] > values[found[place]]; };
    if (count < most) {
      ++count;
    } else if (!is_above(count - 1)) {
      continue;
    }
    size_t place = count - 1;
    for (; place > 0 && is_above(place - 1); --place) found[place] = found[place - 1];
    found[place] = candidate;
  }
}

// The values that a token's experts have by its scores: in f64, whose rounding to f32 hides how the
// library's functions round.
class ExpertValues {
 public:
  ExpertValues(GatingFunction function, const float* scores, size_t expert_count)
      : function_(function), scores_(scores) {
    if (function != GatingFunction::kSoftmax) return;
    most_ = *std::max_element(scores, scores + expert_count);
    for (size_t expert = 0; expert < expert_count; ++expert) sum_ += power_of(expert);
  }

  double of(size_t expert) const {
    const double score = scores_[expert];
    switch (function_) {
      case GatingFunction::kChosenSoftmax:
        return score;
      case GatingFunction::kSoftmax:
        return power_of(expert) / sum_;
      case GatingFunction::kSigmoid:
        return 1 / (1 + std::exp(-score));
      case GatingFunction::kSqrtSoftplus:
        return std::sqrt(std::max(score, 0.0) + std::log1p(std::exp(-std::abs(score))));
    }
    return score;
  }

 private:
  double power_of(size_t expert) const { return std::exp(double{scores_[expert]} - most_); }

  GatingFunction function_;
  const float* scores_;
  double most_ = 0;  // kSoftmax: the largest score ...
  double sum_ = 0;   // ... and the sum of the powers, in the order of the experts
};

// Takes the experts of all groups but the best out of the choice.
void close_groups(const Gating& gating, size_t expert_count, double* values) {
  const size_t size = expert_count / gating.group_count;
  double sums[kMostExperts];
  uint32_t best[kMostExperts];
  for (size_t group = 0; group < gating.group_count; ++group) {
    const double* const own = values + group * size;
    uint32_t largest[2];
    const size_t summed = std::min(size, gating.group_values);
    find_largest(own, size, largest, summed);
    sums[group] = own[largest[0]] + (summed > 1 ? own[largest[1]] : 0);
  }
  find_largest(sums, gating.group_count, best, gating.chosen_groups);
  std::sort(best, best + gating.chosen_groups);
  const uint32_t* next = best;
  for (uint32_t group = 0; group < gating.group_count; ++group) {
    if (next != best + gating.chosen_groups && *next == group) {
      ++next;
    } else {
      std::fill_n(values + group * size, size, -std::numeric_limits<double>::infinity());
    }
  }
}

// Every function grows with the score: where nothing else counts, the scores choose.
void choose_experts(const RouteStep& step, const ExpertValues& values, const float* scores,
                    uint32_t* chosen, const Pass& pass) {
  const size_t experts = step.routing.expert_count;
  if (!step.bias && step.gating.group_count == 1) {
    return find_largest(scores, experts, chosen, step.routing.chosen_count);
  }
  const float* const bias = pass.at(step.bias);
  double by_choice[kMostExperts];
  for (size_t expert = 0; expert < experts; ++expert) {
    by_choice[expert] = values.of(expert) + (bias == nullptr ? 0.0 : double{bias[expert]});
  }
  if (step.gating.group_count > 1) close_groups(step.gating, experts, by_choice);
  find_largest(by_choice, experts, chosen, step.routing.chosen_count);
}

// Sums are formed in the order of the choice.
void weigh_experts(const Gating& gating, const ExpertValues& values, const float* scores,
                   std::span<const uint32_t> chosen, float* weights) {
  const bool is_softmax = gating.function == GatingFunction::kChosenSoftmax;
  double most = scores[chosen[0]];
  for (const uint32_t expert : chosen) most = std::max(most, double{scores[expert]});
  const auto value_of = [&](uint32_t expert) {
    return is_softmax ? std::exp(double{scores[expert]} - most) : values.of(expert);
  };
  double divisor = 1;
  if (is_softmax || gating.is_normalized) {
    divisor = 0;
    for (const uint32_t expert : chosen) divisor += value_of(expert);
    if (!is_softmax) divisor = std::max(divisor, kLeastWeightSum);
  }
  for (size_t place = 0; place < chosen.size(); ++place) {
    weights[place] = static_cast<float>(value_of(chosen[place]) / divisor * gating.scale);
  }
}

void route_token(const RouteStep& step, size_t token, const Pass& pass) {
  const Routing& routing = step.routing;
  const float* const scores = pass.at(step.scores) + token * step.score_stride;
  uint32_t* const chosen = pass.at(routing.chosen) + token * routing.chosen_count;
  float* const weights = pass.at(routing.weights) + token * routing.chosen_count;
  const ExpertValues values(step.gating.function, scores, routing.expert_count);
  choose_experts(step, values, scores, chosen, pass);
  weigh_experts(step.gating, values, scores, {chosen, routing.chosen_count}, weights);
}

// Counts, adds up, and then puts each row behind its expert's last one.
void order_rows(const Routing& routing, const Pass& pass) {
  const uint32_t* const chosen = pass.at(routing.chosen);
  const float* const weights = pass.at(routing.weights);
  uint32_t* const begins = pass.at(routing.row_begin);
  uint32_t* const row_tokens = pass.at(routing.row_tokens);
  float* const ordered = pass.at(pass.areas().row_weights);
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
    ordered[row] = weights[choice];
  }
  for (size_t expert = 0; expert < routing.expert_count; ++expert) {
    const uint32_t* const first = row_tokens + begins[expert];
    const uint32_t* const last = row_tokens + begins[expert + 1];
    const uint32_t* const prompted = std::lower_bound(first, last, pass.batch.generated_tokens);
    ends[expert] = static_cast<uint32_t>(prompted - row_tokens);
  }
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

}  // namespace

void run_route(const RouteStep& step, const Pass& pass) {
  if (!step.scores) return;
  const size_t tokens = pass.batch.tokens.size();
  // One worker is done with few tokens before others could have helped it.
  const bool alone = tokens <= kStaticRows;
  const Range mine = alone ? Range{0, pass.worker == 0 ? tokens : 0}
                           : share(Range{0, tokens}, pass.worker, pass.worker_count);
  for (size_t token = mine.begin; token < mine.end; ++token) route_token(step, token, pass);
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
