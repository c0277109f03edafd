// Kernels are templates of the weights' format, and launched by what a matrix says at run time.
// Included after gpu_code.h.
#pragma once

#include <cstddef>
#include <utility>

#include "engine/tensor/format.h"

namespace lockstep {
namespace {

// Calls work.operator()<kFormat>() of the format that it is.
template <typename Work>
void with_format(Format format, const Work& work) {
  const auto call = [&]<Format kFormat>() {
    if (format == kFormat) work.template operator()<kFormat>();
  };
  [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    (call.template operator()<static_cast<Format>(kIndices)>(), ...);
  }
  (std::make_index_sequence<kFormatCount>());
}

}  // namespace
}  // namespace lockstep
