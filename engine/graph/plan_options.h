// The options that decide a plan beside the graph and its split.
#pragma once

#include <cstddef>

#include "engine/graph/plan_target.h"
#include "engine/kernels/gpu_panel.h"
#include "engine/kernels/profile.h"

namespace lockstep {

struct PlanOptions {
  size_t batch_tokens = 512;  // tokens of the largest batch
  size_t logit_rows = 64;     // rows whose logits one pass may give
  KvFormat kv_format = KvFormat::kF16;
  size_t kv_pages = 0;
  bool bf16_sums = false;  // under `reduce`: partial results travel as bf16
  ProductFormTable forms = own_product_forms();
  AttentionForm prompt_attention = AttentionForm::kF32;
  size_t sequences = 0;              // of a pass at most; 0: one per token
  size_t sequence_pages = 0;         // of a sequence at most; 0: all there are
  GpuPanelLimits panel_limits = {};  // of products of prompted tokens on a GPU
  size_t workers = 1;                // of the rank: each has places of its own for experts' rows
  const PlanTarget* target = &node_plan_target();  // the device; outlives the options
};

}  // namespace lockstep
