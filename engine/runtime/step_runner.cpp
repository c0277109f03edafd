#include "engine/runtime/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lockstep {
namespace {

struct Range {
  size_t begin = 0;
  size_t end = 0;
};

// A contiguous, even share of `total` units.
Range share(size_t total, const Pass& pass) {
  return {total * pass.worker / pass.worker_count, total * (pass.worker + 1) / pass.worker_count};
}

size_t row_count(Rows rows, const Pass& pass) {
  return rows == Rows::kTokens ? pass.batch.tokens.size() : pass.batch.logit_tokens.size();
}

void quantize_row(const ProductInput& activation, size_t row, Range columns, const Pass& pass) {
  if (activation.q8 == nullptr || columns.begin == columns.end) return;
  pass.kernels.quantize(activation.f32 + row * activation.f32_stride, activation.columns,
                        columns.begin, columns.end - columns.begin,
                        activation.q8 + row * activation.q8_stride);
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
    unpack_row(step.table, static_cast<size_t>(pass.batch.tokens[token].token),
               step.output + token * step.output_stride);
  }
}

void run(const NormStep& step, const Pass& pass) {
  const Range mine = share(row_count(step.rows, pass), pass);
  for (size_t row = mine.begin; row < mine.end; ++row) {
    const size_t from = step.rows == Rows::kTokens ? row : pass.batch.logit_tokens[row];
    pass.kernels.rms_norm(step.input + from * step.input_stride, step.weight, step.output.columns,
                          step.epsilon, step.output.f32 + row * step.output.f32_stride);
    quantize_row(step.output, row, {0, step.output.columns}, pass);
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
    const bool quantized = activation_form(part.matrix.format) == ActivationForm::kQ8;
    pass.kernels.matmul[static_cast<size_t>(part.matrix.format)](
        {.matrix = part.matrix,
         .panel_begin = range.begin,
         .panel_end = range.end,
         .input = quantized ? step.input.q8 : reinterpret_cast<const std::byte*>(step.input.f32),
         .input_stride_bytes =
             quantized ? step.input.q8_stride : step.input.f32_stride * sizeof(float),
         .token_count = rows,
         .output = part.output,
         .output_stride = part.output_stride,
         .bias = part.bias,
         .accumulate = part.accumulate});
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
  const size_t group = step.head_count / step.kv_head_count;
  const size_t units = pass.batch.tokens.size() * step.kv_head_count;
  for (size_t unit = pass.worker; unit < units; unit += pass.worker_count) {
    const size_t token = unit / step.kv_head_count;
    const size_t head = unit % step.kv_head_count;
    const BatchToken& where = pass.batch.tokens[token];
    const std::byte* keys = kv.keys(step.layer, head);
    const size_t first_query = head * group * step.head_dimension;
    pass.kernels.attend({.format = kv.format,
                         .head_dimension = step.head_dimension,
                         .keys = keys,
                         .values = keys + kv.keys_bytes(),
                         .page_stride_bytes = kv.page_stride_bytes(),
                         .pages = pass.batch.page_tables[where.sequence].data(),
                         .context = where.position + 1U,
                         .queries = step.queries + token * step.query_stride + first_query,
                         .query_stride = step.head_dimension,
                         .query_count = group,
                         .scale = step.scale,
                         .output = step.output + token * step.output_stride + first_query,
                         .output_stride = step.head_dimension});
  }
}

void run(const QuantizeStep& step, const Pass& pass) {
  for_each_stretch(
      row_count(step.rows, pass), step.activation.columns, pass,
      [&](size_t row, Range columns) { quantize_row(step.activation, row, columns, pass); });
}

void run(const ActivateStep& step, const Pass& pass) {
  for_each_stretch(
      pass.batch.tokens.size(), step.gate.columns, pass, [&](size_t row, Range columns) {
        float* gate = step.gate.f32 + row * step.gate.f32_stride + columns.begin;
        pass.kernels.silu_multiply(gate, step.up + row * step.up_stride + columns.begin,
                                   columns.end - columns.begin, gate);
        quantize_row(step.gate, row, columns, pass);
      });
}

}  // namespace

void run_step(const Step& step, const Pass& pass) {
  std::visit([&](const auto& kind) { run(kind, pass); }, step);
}

}  // namespace lockstep
