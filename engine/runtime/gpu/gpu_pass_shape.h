// The shapes of a GPU's passes, and the memory that recordings of them take.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/operations/plan.h"

namespace lockstep {

// Upper bounds of a pass's sizes; never less than its batch.
struct GpuPassShape {
  uint32_t tokens = 0;
  uint32_t logits = 0;        // rows
  uint32_t units = 0;         // of generated tokens' attention; 0: there are none
  uint32_t prompt_tiles = 0;  // of prompted tokens'; 0: no token is prompted
  uint32_t prompted = 0;      // tokens, exactly
  uint32_t generated = 0;     // before them, exactly; 0 where no token is prompted
  bool walked = false;        // there are generated tokens without units
  // Every token is generated, has units, and is the only one of its sequence: none sees what
  // another of this pass brings, so attention prepares the heads itself.
  bool attends_at_once = false;

  auto operator<=>(const GpuPassShape&) const = default;
};

// The shape of a pass whose numbers are rounded up, so that few shapes serve many passes.
GpuPassShape round_up_shape(const GpuBatchCounts& counts);

// The shapes of all passes that only generate, one token for each of at most `sequences` (but no
// more than one product takes), with logits for each of them; at most `units` of attention.
std::vector<GpuPassShape> generation_shapes(uint32_t sequences, uint32_t units);
// The shapes of the plan's passes that are recorded, or would be if NCCL carried none of their
// sums.
std::vector<GpuPassShape> generation_shapes(const Plan& plan);
// Launches of each of them with up to 8 tokens, at most.
size_t generation_launches(const Plan& plan);
// The GPU's memory that is kept free for the recordings, which CUDA takes by itself: an allowance
// per launch, not measured.
size_t recording_bytes(const Plan& plan);

// True where the norm reads whole rows that the sum leaves: a sum between GPUs forms such norms
// itself (GpuAllReduce::norms).
bool reads_sum(const NormStep& norm, const AllReduceStep& sum);

// True where attention leaves its output, and products read it in f32 as well: a copy. Its kernels
// write one place.
bool forms_f32_apart(const AttendStep& step);

// True where one product computes these parts as gate and up, with what follows: by SiLU, the most
// common gate. Others are launches of their own, so that no product's kernel has their registers.
bool is_fused_gate(const GateFinish& gate, const std::vector<MatmulPart>& parts);

}  // namespace lockstep
