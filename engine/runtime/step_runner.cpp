#include "engine/runtime/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/range.h"
#include "engine/collectives/shared_memory.h"
#include "engine/machine/tick_clock.h"

namespace lockstep {
namespace {

// A contiguous, even share of `total` units.
Range share(size_t total, const Pass& pass) {
  return share(Range{0, total}, pass.worker, pass.worker_count);
}

size_t row_count(Rows rows, const Pass& pass) {
  return rows == Rows::kTokens ? pass.batch.tokens.size() : pass.batch.logit_tokens.size();
}

// Counts the time from its making to its end as spent in exchange.
class ExchangeTime {
 public:
  explicit ExchangeTime(const Pass& pass) : counters_(pass.counters) {}
  ExchangeTime(const ExchangeTime&) = delete;
  ExchangeTime& operator=(const ExchangeTime&) = delete;
  ~ExchangeTime() { counters_.exchange_ticks.add(ticks_now() - start_); }

 private:
  WorkerCounters& counters_;
  uint64_t start_ = ticks_now();
};

bool has_peers(const Pass& pass) {
  return pass.plan.peers.distances.size() > 1;
}

// Pushes what this worker has just computed into the other ranks' copies.
void push(const Pass& pass, const void* own, size_t stride_bytes, size_t rows, size_t bytes) {
  if (!has_peers(pass) || rows == 0 || bytes == 0) return;
  const ExchangeTime time(pass);
  pass.counters.exchange_bytes.add(push_rows(pass.plan.peers, own, stride_bytes, rows, bytes));
}

void push_floats(const Pass& pass, const float* own, size_t stride, size_t rows, size_t columns) {
  push(pass, own, stride * sizeof(float), rows, columns * sizeof(float));
}

// Columns of one row to kQ8. `values` points at the first of them.
void quantize_row(const Pass& pass, const float* values, const Q8Output& output, size_t row,
                  Range columns, bool gather) {
  if (output.rows == nullptr || columns.empty()) return;
  std::byte* q8 = output.rows + row * output.stride;
  const size_t first = output.first_column + columns.begin;
  pass.kernels.quantize(values, output.columns, first, columns.size(), q8);
  if (!gather || !has_peers(pass)) return;
  push(pass, q8 + first, 0, 1, columns.size());
  const Q8Row layout = q8_row(output.columns);
  const size_t offset = first / kQ8BlockElements * sizeof(float);
  const size_t bytes = columns.size() / kQ8BlockElements * sizeof(float);
  for (const size_t part : {layout.scales, layout.sums, layout.first_sums, layout.scaled_sums}) {
    push(pass, q8 + part + offset, 0, 1, bytes);
  }
}

// Calls work(row, columns) for this worker's share of rows x columns, cut at multiples of the
// quantization block, so that a single row is shared as well.
template <typename Work>
void for_each_stretch(size_t rows, size_t columns, const Pass& pass, Work work) {
  const size_t blocks = (columns + kQ8BlockElements - 1) / kQ8BlockElements;
  const Range mine = share(rows * blocks, pass);
  for (size_t unit = mine.begin; unit < mine.end;) {
    const size_t row = unit / blocks;
    const size_t first = unit % blocks;
    const size_t last = std::min(blocks, first + mine.end - unit);
    work(row, Range{first * kQ8BlockElements, std::min(columns, last * kQ8BlockElements)});
    unit += last - first;
  }
}

void run(const ClearPagesStep&, const Pass& pass) {
  const KvLayout& kv = pass.plan.kv;
  const Range mine = share(kv.layer_count * kv.head_count, pass);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    std::byte* pages = kv.keys(unit / kv.head_count, unit % kv.head_count);
    for (const uint32_t page : pass.batch.cleared_pages) {
      std::memset(pages + page * kv.page_stride_bytes(), 0, kv.page_stride_bytes());
    }
  }
}

void run(const RotaryTableStep& step, const Pass& pass) {
  const size_t pairs = step.frequencies->size();
  const Range mine = share(pass.batch.tokens.size(), pass);
  for (size_t token = mine.begin; token < mine.end; ++token) {
    const auto position = static_cast<double>(pass.batch.tokens[token].position);
    float* cosines = step.table + token * step.stride;
    for (size_t pair = 0; pair < pairs; ++pair) {
      const double angle = position * (*step.frequencies)[pair];
      cosines[pair] = static_cast<float>(std::cos(angle));
      cosines[pairs + pair] = static_cast<float>(std::sin(angle));
    }
  }
}

void run(const EmbedStep& step, const Pass& pass) {
  const Range mine = share(pass.batch.tokens.size(), pass);
  for (size_t token = mine.begin; token < mine.end; ++token) {
    const auto row = static_cast<size_t>(pass.batch.tokens[token].token);
    if (row < step.row_begin || row >= step.row_begin + step.table.rows) continue;
    float* output = step.output + token * step.output_stride;
    unpack_row(step.table, row - step.row_begin, output);
    if (step.gather) push_floats(pass, output, 0, 1, step.table.columns);
  }
}

void run(const NormStep& step, const Pass& pass) {
  const Range mine = share(row_count(step.rows, pass), pass);
  const ProductInput& output = step.output;
  const Q8Output q8 = {output.q8, output.q8_stride, output.columns, 0};
  for (size_t row = mine.begin; row < mine.end; ++row) {
    const size_t from = step.rows == Rows::kTokens ? row : pass.batch.logit_tokens[row];
    float* values = output.f32 + row * output.f32_stride;
    pass.kernels.rms_norm(step.input + from * step.input_stride, step.weight, output.columns,
                          step.epsilon, values);
    quantize_row(pass, values, q8, row, {0, output.columns}, false);
  }
}

// Panels [range) of a part for all rows. What others read is pushed stretch by stretch, so that of
// long prompts the pushes overlap the other workers' products.
void multiply(const MatmulStep& step, const MatmulPart& part, Range panels, size_t rows,
              const Pass& pass) {
  constexpr size_t kPanelsPushed = 16;
  const bool quantized = activation_form(part.matrix.format) == ActivationForm::kQ8;
  const bool gather = part.gather && has_peers(pass);
  const size_t most = gather ? kPanelsPushed : panels.size();
  if (part.remote) {
    const size_t columns =
        std::min(panels.end * kPanelRows, part.matrix.rows) - panels.begin * kPanelRows;
    pass.counters.exchange_bytes.add(rows * columns * sizeof(float));
  }
  for (size_t begin = panels.begin; begin < panels.end; begin += most) {
    const size_t end = std::min(panels.end, begin + most);
    pass.kernels.matmul[static_cast<size_t>(part.matrix.format)](
        {.matrix = part.matrix,
         .panel_begin = begin,
         .panel_end = end,
         .input = quantized ? step.input.q8 : reinterpret_cast<const std::byte*>(step.input.f32),
         .input_stride_bytes =
             quantized ? step.input.q8_stride : step.input.f32_stride * sizeof(float),
         .token_count = rows,
         .output = part.output,
         .output_stride = part.output_stride,
         .bias = part.bias,
         .accumulate = part.accumulate});
    if (!gather) continue;
    const size_t first = begin * kPanelRows;
    const size_t columns = std::min(end * kPanelRows, part.matrix.rows) - first;
    push_floats(pass, part.output + first, part.output_stride, rows, columns);
  }
}

// The parts' panels stand in one row, weighed by their bytes; each worker takes a contiguous
// stretch, the same one in every pass.
void run(const MatmulStep& step, const Pass& pass) {
  const size_t rows = row_count(step.rows, pass);
  if (rows == 0) return;
  size_t total_bytes = 0;
  for (const MatmulPart& part : step.parts) {
    total_bytes += part.matrix.panel_count() * panel_bytes(part.matrix.format, part.matrix.columns);
  }
  const Range mine = share(total_bytes, pass);
  size_t part_begin = 0;
  for (const MatmulPart& part : step.parts) {
    const size_t size = panel_bytes(part.matrix.format, part.matrix.columns);
    const size_t panels = part.matrix.panel_count();
    const auto panel_at = [&](size_t byte) {
      return byte <= part_begin ? 0 : std::min(panels, (byte - part_begin + size - 1) / size);
    };
    const Range range{panel_at(mine.begin), panel_at(mine.end)};
    part_begin += panels * size;
    if (range.begin >= range.end) continue;
    multiply(step, part, range, rows, pass);
  }
}

void treat_head(const PrepareHeadsStep& step, const Pass& pass, size_t token, const float* norm,
                float* head) {
  if (norm != nullptr) {
    pass.kernels.rms_norm(head, norm, step.head_dimension, step.epsilon, head);
  }
  if (step.rotary_table != nullptr) {
    const float* cosines = step.rotary_table + token * step.rotary_stride;
    rotate(step.pairs, cosines, cosines + step.rotary_dimensions / 2, step.rotary_dimensions, head);
  }
}

void append_to_cache(const PrepareHeadsStep& step, const Pass& pass, size_t token, size_t head) {
  const KvLayout& kv = pass.plan.kv;
  const BatchToken& where = pass.batch.tokens[token];
  const uint32_t page = pass.batch.page_tables[where.sequence][where.position / kPageTokens];
  std::byte* keys = kv.keys(step.layer, head) + page * kv.page_stride_bytes();
  const size_t offset = token * step.kv_stride + head * step.head_dimension;
  pass.kernels.append_kv(kv.format, step.head_dimension, where.position % kPageTokens,
                         step.keys + offset, step.values + offset, keys, keys + kv.keys_bytes());
}

void run(const PrepareHeadsStep& step, const Pass& pass) {
  const size_t heads = step.head_count + step.kv_head_count;
  const Range mine = share(pass.batch.tokens.size() * heads, pass);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    const size_t token = unit / heads;
    const size_t head = unit % heads;
    if (head < step.head_count) {
      treat_head(step, pass, token, step.query_norm,
                 step.queries + token * step.query_stride + head * step.head_dimension);
      continue;
    }
    const size_t kv_head = head - step.head_count;
    treat_head(step, pass, token, step.key_norm,
               step.keys + token * step.kv_stride + kv_head * step.head_dimension);
    append_to_cache(step, pass, token, kv_head);
  }
}

// Units are dealt out in turn: later tokens of a prompt see more keys.
void run(const AttendStep& step, const Pass& pass) {
  const KvLayout& kv = pass.plan.kv;
  const size_t units = pass.batch.tokens.size() * step.kv_head_count;
  for (size_t unit = pass.worker; unit < units; unit += pass.worker_count) {
    const size_t token = unit / step.kv_head_count;
    const size_t head = unit % step.kv_head_count;
    const BatchToken& where = pass.batch.tokens[token];
    const std::byte* keys = kv.keys(step.layer, head);
    const size_t group_begin = head * step.group;
    const Range queries = {group_begin - std::min(group_begin, step.group_offset),
                           std::min(step.head_count, group_begin + step.group - step.group_offset)};
    const size_t first = queries.begin * step.head_dimension;
    float* output = step.output + token * step.output_stride + first;
    pass.kernels.attend({.format = kv.format,
                         .head_dimension = step.head_dimension,
                         .keys = keys,
                         .values = keys + kv.keys_bytes(),
                         .page_stride_bytes = kv.page_stride_bytes(),
                         .pages = pass.batch.page_tables[where.sequence].data(),
                         .position = where.position,
                         .queries = step.queries + token * step.query_stride + first,
                         .query_stride = step.head_dimension,
                         .query_count = queries.size(),
                         .scale = step.scale,
                         .output = output,
                         .output_stride = step.head_dimension});
    if (step.gather) push_floats(pass, output, 0, 1, queries.size() * step.head_dimension);
  }
}

void run(const QuantizeStep& step, const Pass& pass) {
  for_each_stretch(pass.batch.tokens.size(), step.columns, pass, [&](size_t row, Range columns) {
    quantize_row(pass, step.input + row * step.input_stride + columns.begin, step.output, row,
                 columns, step.gather);
  });
}

void run(const ActivateStep& step, const Pass& pass) {
  for_each_stretch(pass.batch.tokens.size(), step.columns, pass, [&](size_t row, Range columns) {
    float* output = step.output + row * step.output_stride + columns.begin;
    pass.kernels.silu_multiply(step.gate + row * step.gate_stride + columns.begin,
                               step.up + row * step.up_stride + columns.begin, columns.size(),
                               output);
    if (step.gather_f32) push_floats(pass, output, 0, 1, columns.size());
    quantize_row(pass, output, step.q8, row, columns, step.gather_q8);
  });
}

void run(const AllReduceStep& step, const Pass& pass) {
  const size_t rows = row_count(step.rows, pass);
  if (rows == 0) return;
  const ExchangeTime time(pass);
  pass.counters.exchange_bytes.add(all_reduce({.partial = step.partial,
                                               .partial_stride = step.partial_stride,
                                               .output = step.output,
                                               .output_stride = step.output_stride,
                                               .row_count = rows,
                                               .column_count = step.columns,
                                               .contributors = step.contributors,
                                               .bf16_partial = step.bf16_partial,
                                               .bf16_sum = step.bf16_sum},
                                              pass.plan.peers, pass.barrier, pass.worker,
                                              pass.worker_count));
}

}  // namespace

void run_step(const StepWork& step, const Pass& pass) {
  std::visit([&](const auto& kind) { run(kind, pass); }, step);
}

}  // namespace lockstep
