// The operations of a GPU, as one table of functions, each of which launches its kernels on a
// stream. Like KernelTable, but for one row per kind of device: NVIDIA's, by CUDA. Tests have
// another, whose kernels are the same code run on the host.
#pragma once

#include <string_view>

#include "engine/kernels/gpu_attention.h"
#include "engine/kernels/gpu_candidates.h"
#include "engine/kernels/gpu_draw.h"
#include "engine/kernels/gpu_experts.h"
#include "engine/kernels/gpu_heads.h"
#include "engine/kernels/gpu_matrix.h"
#include "engine/kernels/gpu_panel.h"
#include "engine/kernels/gpu_product.h"
#include "engine/kernels/gpu_rows.h"
#include "engine/kernels/gpu_values.h"

namespace lockstep {

// Each is documented where the function of its name is declared (gpu_pack_rows and so on). The GPU
// whose stream it is must be the calling thread's (GpuDevice::use). None allocates or waits.
struct GpuKernels {
  std::string_view name;  // "cuda"
  void (*pack_rows)(void* stream, const GpuPacking& packing);
  void (*embed_rows)(void* stream, const GpuEmbedding& embedding);
  void (*product)(void* stream, const GpuProduct& product);
  void (*unpack_rows)(void* stream, const GpuUnpacking& unpacking);
  void (*finish_panel)(void* stream, const GpuPanelSums& sums);
  void (*prepare_heads)(void* stream, const GpuHeads& heads);
  void (*attend_generated)(void* stream, const GpuAttention& attention, const GpuHeads* unprepared);
  void (*attend_walked)(void* stream, const GpuAttention& attention);
  void (*attend_prompted)(void* stream, const GpuAttention& attention);
  void (*norm_rows)(void* stream, const GpuNormRows& norm);
  void (*compute_elements)(void* stream, const GpuElementwise& step);
  void (*sum_chunks)(void* stream, const GpuChunkSums& sums);
  void (*norm_whole_rows)(void* stream, const GpuWholeNorm& norm);
  void (*treat_head_rows)(void* stream, const GpuHeadRows& heads);
  void (*copy_heads)(void* stream, const GpuHeadCopy& copy);
  void (*mean_rows)(void* stream, const GpuRowMeans& means);
  void (*rotary_table)(void* stream, const GpuRotaryTable& rotary);
  void (*route_tokens)(void* stream, const GpuRouting& routing);
  void (*expert_product)(void* stream, const GpuExpertProduct& experts);
  void (*sum_experts)(void* stream, const GpuExpertSum& sum);
  void (*find_candidates)(void* stream, const GpuCandidates& find);
  void (*draw_tokens)(void* stream, const GpuDraw& draw);
  void (*read_memory)(void* stream, const GpuRead& read);
};

// The table of the functions of these names that the program is linked with: CUDA's, or those of
// the tests.
constexpr GpuKernels linked_gpu_kernels(std::string_view name) {
  return {.name = name,
          .pack_rows = gpu_pack_rows,
          .embed_rows = gpu_embed_rows,
          .product = gpu_product,
          .unpack_rows = gpu_unpack_rows,
          .finish_panel = gpu_finish_panel,
          .prepare_heads = gpu_prepare_heads,
          .attend_generated = gpu_attend_generated,
          .attend_walked = gpu_attend_walked,
          .attend_prompted = gpu_attend_prompted,
          .norm_rows = gpu_norm_rows,
          .compute_elements = gpu_compute_elements,
          .sum_chunks = gpu_sum_chunks,
          .norm_whole_rows = gpu_norm_whole_rows,
          .treat_head_rows = gpu_treat_head_rows,
          .copy_heads = gpu_copy_heads,
          .mean_rows = gpu_mean_rows,
          .rotary_table = gpu_rotary_table,
          .route_tokens = gpu_route_tokens,
          .expert_product = gpu_expert_product,
          .sum_experts = gpu_sum_experts,
          .find_candidates = gpu_find_candidates,
          .draw_tokens = gpu_draw_tokens,
          .read_memory = gpu_read_memory};
}

// In builds with CUDA alone.
const GpuKernels& cuda_kernels();

}  // namespace lockstep
