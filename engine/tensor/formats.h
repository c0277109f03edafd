// The list of formats, in the order of Format: one row each.
#pragma once

#include <array>
#include <cstddef>

#include "engine/tensor/formats/floats.h"
#include "engine/tensor/formats/fp4.h"
#include "engine/tensor/formats/iq1.h"
#include "engine/tensor/formats/iq2.h"
#include "engine/tensor/formats/iq3.h"
#include "engine/tensor/formats/iq4.h"
#include "engine/tensor/formats/k_blocks.h"
#include "engine/tensor/formats/low_k_blocks.h"
#include "engine/tensor/formats/simple_blocks.h"
#include "engine/tensor/formats/ternary.h"

namespace lockstep {

template <typename... Formats>
struct FormatList {};

using AllFormats = FormatList<F32, F16, Bf16,                                 //
                              Q8_0, Q4_0, Q4_1, Q5_0, Q5_1,                   //
                              Q2_K, Q3_K, Q4_K, Q5_K, Q6_K,                   //
                              Iq4Nl, Iq4Xs, Mxfp4, Nvfp4,                     //
                              Iq3S, Iq3Xxs, Iq2S, Iq2Xs, Iq2Xxs, Iq1S, Iq1M,  //
                              Tq1_0, Tq2_0>;

// The results of make.operator()<F>() for each format F, by Format.
template <typename Value, typename Make, typename... Formats>
constexpr std::array<Value, kFormatCount> each_format(Make make, FormatList<Formats...>) {
  static_assert(sizeof...(Formats) == kFormatCount);
  return {make.template operator()<Formats>()...};
}
template <typename Value, typename Make>
constexpr std::array<Value, kFormatCount> each_format(Make make) {
  return each_format<Value>(make, AllFormats{});
}

// A format whose memory holds codes (formats/coded.h), for which kernels have one general way.
template <typename F>
concept CodedFormat = requires {
  F::kCodes;
};

}  // namespace lockstep
