#include "tests/engine/kernels/cuda/host_kernels.h"

namespace lockstep {

const GpuKernels& host_played_kernels() {
  static constexpr GpuKernels kKernels = {.name = "host",
                                          .pack_rows = gpu_pack_rows,
                                          .embed_rows = gpu_embed_rows,
                                          .product = gpu_product,
                                          .prepare_heads = gpu_prepare_heads,
                                          .attend_generated = gpu_attend_generated,
                                          .attend_walked = gpu_attend_walked,
                                          .attend_prompted = gpu_attend_prompted,
                                          .norm_rows = gpu_norm_rows,
                                          .form_rows = gpu_form_rows,
                                          .rotary_table = gpu_rotary_table};
  return kKernels;
}

}  // namespace lockstep
