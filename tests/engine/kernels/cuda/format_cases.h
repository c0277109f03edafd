// Tests that are made for every format that GPUs have kernels for.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/kernels/gpu_tile.h"
#include "engine/tensor/format.h"

namespace lockstep {

inline std::vector<Format> every_format() {
  std::vector<Format> formats;
  for (const FormatTraits& row : all_formats()) {
    if (has_gpu_kernels(row.format)) formats.push_back(row.format);
  }
  return formats;
}

inline std::string name_of_format(const testing::TestParamInfo<Format>& info) {
  return std::string(traits(info.param).name);
}

}  // namespace lockstep
