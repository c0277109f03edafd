// The options that decide a plan beside the graph and its split, and where the rank's arenas lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/graph/plan.h"
#include "engine/kernels/profile.h"

namespace lockstep {

// How matrices lie in a rank's memory, and so what computes there.
enum class WeightLayout : uint8_t {
  kPanels,    // PackedMatrix, on processors
  kGpuTiles,  // GpuMatrix, on a GPU
};

struct PlanOptions {
  size_t batch_tokens = 512;  // tokens of the largest batch
  size_t logit_rows = 64;     // rows whose logits one pass may give
  KvFormat kv_format = KvFormat::kF16;
  size_t kv_pages = 0;
  bool bf16_sums = false;  // under `reduce`: partial results travel as bf16
  ProductFormTable forms = own_product_forms();
  AttentionForm prompt_attention = AttentionForm::kF32;
  WeightLayout weight_layout = WeightLayout::kPanels;
  size_t sequences = 0;              // of a pass at most; 0: one per token
  size_t sequence_pages = 0;         // of a sequence at most; 0: all there are
  GpuPanelLimits panel_limits = {};  // of products of prompted tokens on a GPU
  size_t workers = 1;                // of the rank: each has places of its own for experts' rows
};

// The addresses of a rank's arenas. All 0: nothing is taken yet; a plan is then good for its sizes
// only.
struct ArenaAddresses {
  uintptr_t weights = 0;
  uintptr_t scratch = 0;   // activations of this rank alone
  uintptr_t exchange = 0;  // activations of which every rank has a copy
  uintptr_t kv = 0;
  uintptr_t logits = 0;  // on rank 0
};

}  // namespace lockstep
