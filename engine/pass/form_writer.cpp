#include "engine/pass/form_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/collectives/shared_memory.h"

namespace lockstep {
namespace {

// Columns that are converted at once, through the stack.
constexpr size_t kStretchColumns = 512;

void write_q8(const Pass& pass, const float* values, const FormsOutput& output, std::byte* row,
              size_t first, size_t count) {
  pass.kernels.quantize(values, output.forms.columns, first, count, row);
  if (!output.gather || !has_peers(pass)) return;
  push(pass, row + first, count);
  const Q8Row layout = q8_row(output.forms.columns);
  const size_t offset = first / kQ8BlockElements * sizeof(float);
  const size_t bytes = count / kQ8BlockElements * sizeof(float);
  for (const size_t part : {layout.scales, layout.sums, layout.first_sums, layout.scaled_sums}) {
    push(pass, row + part + offset, bytes);
  }
}

// Zeroes what products read behind a row's last column, since they take 32 columns at a time, and
// pushes the columns.
void complete_bf16(const Pass& pass, const FormsOutput& output, std::byte* row, size_t first,
                   size_t count) {
  std::byte* place = row + first * sizeof(uint16_t);
  size_t written = count;
  if (first + count == output.forms.columns) {
    written = round_up<size_t>(output.forms.columns, kChunkColumns) - first;
    std::memset(place + count * sizeof(uint16_t), 0, (written - count) * sizeof(uint16_t));
  }
  if (output.gather) push(pass, place, written * sizeof(uint16_t));
}

void write_bf16(const Pass& pass, const float* values, const FormsOutput& output, std::byte* row,
                size_t first, size_t count) {
  pass.kernels.to_bf16(values, count, row + first * sizeof(uint16_t));
  complete_bf16(pass, output, row, first, count);
}

void write_f32(const Pass& pass, const float* values, const FormsOutput& output, std::byte* row,
               size_t first, size_t count) {
  std::byte* place = row + first * sizeof(float);
  std::memcpy(place, values, count * sizeof(float));
  if (output.gather) push(pass, place, count * sizeof(float));
}

}  // namespace

void carry_rows(const Pass& pass, Range rows, size_t part, size_t whole) {
  if (pass.written_rows == nullptr) return;
  const ExchangeTime time(pass);
  pass.written_rows->carry(pass.peers.rank, rows, part, whole);
}

void await_rows(const Pass& pass, size_t end) {
  if (pass.read_rows == nullptr) return;
  const ExchangeTime time(pass);
  pass.read_rows->await(end);
}

void await_all_rows(const Pass& pass) {
  if (pass.read_rows == nullptr) return;
  const ExchangeTime time(pass);
  pass.read_rows->await_all();
}

void push(const Pass& pass, const void* own, size_t bytes) {
  if (!has_peers(pass) || bytes == 0) return;
  const ExchangeTime time(pass);
  pass.counters.exchange_bytes.add(push_rows(pass.peers, own, 0, 1, bytes));
}

void write_forms(const Pass& pass, const float* values, const FormsOutput& output, size_t row,
                 Range columns, bool generated) {
  if (columns.empty()) return;
  const size_t first = output.first_column + columns.begin;
  const auto place = [&](ActivationForm form) -> std::byte* {
    const FormBuffer& buffer = output.forms[form];
    const bool read = generated ? buffer.generated : buffer.prompted;
    return read ? pass.at(buffer.rows) + row * buffer.stride_bytes : nullptr;
  };
  if (std::byte* q8 = place(ActivationForm::kQ8)) {
    write_q8(pass, values, output, q8, first, columns.size());
  }
  for (const ActivationForm form : {ActivationForm::kBf16, ActivationForm::kBf16Dots}) {
    if (std::byte* bf16 = place(form)) {
      write_bf16(pass, values, output, bf16, first, columns.size());
    }
  }
  if (std::byte* f32 = place(ActivationForm::kF32)) {
    write_f32(pass, values, output, f32, first, columns.size());
  }
}

void complete_bf16(const Pass& pass, const FormsOutput& output, Range rows, Range columns) {
  if (columns.empty()) return;
  const FormBuffer& buffer = output.forms[ActivationForm::kBf16];
  for (size_t row = rows.begin; row < rows.end; ++row) {
    complete_bf16(pass, output, pass.at(buffer.rows) + row * buffer.stride_bytes,
                  output.first_column + columns.begin, columns.size());
  }
}

namespace {

// Columns of one row: `residual` points at column 0 of its rank's.
void write_norm_row(const Pass& pass, const float* residual, const NormOutput& norm, size_t row,
                    Range columns, bool generated) {
  alignas(64) float product[kStretchColumns];
  float* sums = pass.at(norm.chunks.sums) + row * norm.chunks.stride;
  for (size_t begin = columns.begin; begin < columns.end; begin += kStretchColumns) {
    const Range stretch = {begin, std::min(columns.end, begin + kStretchColumns)};
    pass.kernels.weigh(residual + begin, pass.at(norm.weight) + begin, stretch.size(), product,
                       sums + begin / kChunkColumns);
    write_forms(pass, product, norm.output, row, stretch, generated);
  }
  if (!norm.output.gather) return;
  const size_t first = columns.begin / kChunkColumns;
  const size_t end = (columns.end + kChunkColumns - 1) / kChunkColumns;
  push(pass, sums + first, (end - first) * sizeof(float));
}

}  // namespace

void write_norm(const Pass& pass, const float* residual, size_t residual_stride,
                const NormOutput& norm, Range tokens, Range columns) {
  const auto write_row = [&](size_t token, size_t row) {
    write_norm_row(pass, residual + token * residual_stride, norm, row, columns,
                   token < pass.batch.generated_tokens);
  };
  if (norm.rows == Rows::kTokens) {
    for (size_t token = tokens.begin; token < tokens.end; ++token) write_row(token, token);
    return;
  }
  const auto& wanted = pass.batch.logit_tokens;
  const auto first = std::ranges::lower_bound(wanted, tokens.begin);
  for (auto token = first; token != wanted.end() && *token < tokens.end; ++token) {
    write_row(*token, static_cast<size_t>(token - wanted.begin()));
  }
}

void write_logit_norm(const Pass& pass, const float* residual, const NormOutput& norm, size_t row,
                      Range columns) {
  write_norm_row(pass, residual, norm, row, columns, row < pass.layout.generated_logits());
}

float norm_factor(const float* chunk_sums, size_t columns, float epsilon) {
  const size_t chunks = (columns + kChunkColumns - 1) / kChunkColumns;
  float sum = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) sum += chunk_sums[chunk];
  const float mean = sum / static_cast<float>(columns);
  return 1.0F / std::sqrt(mean + epsilon);
}

Moments moments_of(const float* sums, const float* squares, size_t columns, float epsilon) {
  const size_t chunks = divide_up(columns, kChunkColumns);
  float sum = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) sum += sums[chunk];
  const float mean = sum / static_cast<float>(columns);
  float apart = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const size_t begin = chunk * kChunkColumns;
    const auto size = static_cast<float>(std::min(columns, begin + kChunkColumns) - begin);
    const float distance = sums[chunk] / size - mean;
    apart += squares[chunk] + size * (distance * distance);
  }
  return {mean, 1.0F / std::sqrt(apart / static_cast<float>(columns) + epsilon)};
}

void norm_factors(const Pass& pass, const NormFactor& norm, Range rows, float* factors) {
  const float* const sums = pass.at(norm.chunks.sums);
  for (size_t row = rows.begin; row < rows.end; ++row) {
    factors[row - rows.begin] =
        norm_factor(sums + row * norm.chunks.stride, norm.columns, norm.epsilon);
  }
}

}  // namespace lockstep
