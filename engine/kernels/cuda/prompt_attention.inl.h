// Attention of prompted tokens (gpu_attention.h). Included after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/attention_walk.inl.h"
#include "engine/kernels/cuda/prompt_ring.inl.h"
#include "engine/kernels/cuda/prompt_tiles.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

template <KvFormat kFormat>
void launch_prompted(void* stream, const GpuAttention& a) {
  if constexpr (kHasRing<kFormat>) {
    if (takes_ring<kFormat>(a)) {
      if (a.kv.head_dimension <= 64) return launch_ring<kFormat, 2>(stream, a);
      if (a.kv.head_dimension <= 96) return launch_ring<kFormat, 3>(stream, a);
      return launch_ring<kFormat, 4>(stream, a);
    }
  }
  if constexpr (kFormat != KvFormat::kF32) {
    if (a.kv.head_dimension <= 64) return launch_tiles<kFormat, 2>(stream, a);
    if (a.kv.head_dimension <= 96) return launch_tiles<kFormat, 3>(stream, a);
    if (a.kv.head_dimension <= 128) return launch_tiles<kFormat, 4>(stream, a);
    if (a.kv.head_dimension <= kGpuPromptTileDimensions) return launch_tiles<kFormat, 8>(stream, a);
  }
  launch_walk<kFormat>(stream, a, true);
}

}  // namespace

void gpu_attend_prompted(void* stream, const GpuAttention& attention) {
  with_kv_format(attention.kv.format,
                 [&]<KvFormat kFormat>() { launch_prompted<kFormat>(stream, attention); });
}

}  // namespace lockstep
