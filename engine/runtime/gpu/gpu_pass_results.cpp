#include "engine/runtime/gpu/gpu_pass_results.h"

#include <array>
#include <utility>

namespace lockstep {

GpuResultBytes gpu_result_bytes(const Plan& plan) {
  if (plan.chunk_tokens >= plan.batch_tokens || plan.logits_bytes == 0) return {};
  return {.logits = plan.logits_bytes,
          .hidden = plan.hidden.columns.empty()
                        ? 0
                        : plan.batch_tokens * plan.hidden.residual_stride * sizeof(float),
          .candidates = std::get<GpuAreas>(plan.areas).candidate_bytes};
}

Result<void> GpuPassResults::allocate(GpuDevice& device, const Plan& plan, int node) {
  const GpuResultBytes bytes = gpu_result_bytes(plan);
  auto logits = device.allocate(bytes.logits, "logits of passes in chunks");
  if (!logits) return std::unexpected(logits.error());
  logits_ = std::move(*logits);
  auto hidden = device.allocate(bytes.hidden, "hidden rows of passes in chunks");
  if (!hidden) return std::unexpected(hidden.error());
  hidden_ = std::move(*hidden);
  if (bytes.candidates == 0) return {};
  auto candidates = NodeMemory::allocate({.bytes = bytes.candidates,
                                          .what = "the likeliest logits of passes in chunks",
                                          .node = node});
  if (!candidates) return std::unexpected(candidates.error());
  candidates_ = std::move(*candidates);
  auto pinned = device.pin({candidates_.data(), candidates_.size_bytes()});
  if (!pinned) return std::unexpected(pinned.error());
  pinned_ = std::move(*pinned);
  return {};
}

GpuPassResults::Places GpuPassResults::places() const {
  return {reinterpret_cast<const float*>(logits_.data()),
          reinterpret_cast<const float*>(hidden_.data()), candidates_.data()};
}

Result<void> GpuPassResults::keep(GpuStream& stream, const Plan& plan, const Places& chunk,
                                  Range tokens, Range rows) const {
  struct Copy {
    std::byte* to;
    const std::byte* from;
    size_t begin;
    size_t bytes;
  };
  const size_t logits = plan.logits_stride * sizeof(float);
  const size_t hidden = plan.hidden.residual_stride * sizeof(float);
  // All rows' candidates, and then all rows' draws.
  const size_t draws = plan.logit_rows * sizeof(GpuCandidateRow);
  const auto* const from = reinterpret_cast<const std::byte*>(chunk.logits);
  std::array<Copy, 4> copies = {
      Copy{logits_.data(), from, rows.begin * logits, rows.size() * logits},
      Copy{candidates_.data(), chunk.candidates, rows.begin * sizeof(GpuCandidateRow),
           rows.size() * sizeof(GpuCandidateRow)},
      Copy{candidates_.data() + draws, chunk.candidates + draws, rows.begin * sizeof(GpuDrawn),
           rows.size() * sizeof(GpuDrawn)},
      Copy{hidden_.data(), reinterpret_cast<const std::byte*>(chunk.hidden), tokens.begin * hidden,
           hidden_.size_bytes() == 0 ? 0 : tokens.size() * hidden}};
  for (const Copy& copy : copies) {
    if (copy.bytes == 0) continue;
    auto copied = stream.copy(copy.to + copy.begin, copy.from, copy.bytes);
    if (!copied) return copied;
  }
  return {};
}

}  // namespace lockstep
