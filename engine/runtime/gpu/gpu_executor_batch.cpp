// The input of a pass on its GPU: the batch, as kernels read it, and rows given with tokens.
#include <algorithm>
#include <cstring>

#include "engine/runtime/gpu/gpu_executor.h"

namespace lockstep {

size_t gpu_given_bytes(const Plan& plan) {
  return plan.chunk_tokens * plan.given_columns * sizeof(float);
}

// Returns the number of the staging's bytes that are to be copied. The places of tokens and rows
// are the chunk's own.
size_t GpuExecutor::write_batch(const Batch& batch, Range tokens, Range rows, size_t turn) {
  GpuBatchWriter writer(staging(turn), areas_->limits);
  for (size_t sequence = 0; sequence < batch.sequence_count(); ++sequence) {
    writer.add_sequence(
        std::span(batch.page_tables).subspan(sequence * batch.group_count, batch.group_count));
  }
  size_t row = rows.begin;
  for (size_t index = tokens.begin; index < tokens.end; ++index) {
    const BatchToken& token = batch.tokens[index];
    const uint32_t id = batch.picked_rows.empty() ? static_cast<uint32_t>(token.token)
                                                  : kGpuPickOfRow | batch.picked_rows[index];
    if (index < batch.generated_tokens) {
      writer.add_generated(id, token.position, token.sequence, token.segment);
    } else {
      writer.add_prompted(id, token.position, token.sequence, token.segment);
    }
    if (row == rows.end || batch.logit_tokens[row] != index) continue;
    const LogitDrawRequest request =
        row < batch.draws.size() ? batch.draws[row] : LogitDrawRequest();
    writer.want_logits({.inverse_temperature = request.inverse_temperature,
                        .weight_min = request.weight_min,
                        .uniform = request.uniform});
    ++row;
  }
  writer.end();
  writer.batch().counts->result_offset = static_cast<uint32_t>(turn * areas_->candidate_bytes);
  shape_ = round_up_shape(*writer.batch().counts);
  return writer.used_bytes();
}

Result<void> GpuExecutor::begin(const Batch& batch) {
  return begin(batch, {0, batch.tokens.size()}, {0, batch.logit_tokens.size()});
}

Result<void> GpuExecutor::begin(const Batch& batch, Range tokens, Range rows) {
  if (auto used = device_->use(); !used) return used;
  keep_given_rows(batch, tokens);
  const size_t bytes = write_batch(batch, tokens, rows);
  return stream_->copy(addresses_->at(areas_->batch), staging_.data(), bytes);
}

// The GPU reads them there: each is read once, so a copy would gain nothing.
void GpuExecutor::keep_given_rows(const Batch& batch, Range tokens) {
  const size_t columns = plan_->given_columns;
  if (columns == 0) return;
  const auto rows =
      std::span(batch.given_rows).subspan(tokens.begin * columns, tokens.size() * columns);
  std::memcpy(given_rows_.data(), rows.data(), rows.size_bytes());
}

}  // namespace lockstep
