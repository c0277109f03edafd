// Stands in for cuda_gpus.cpp in a build without CUDA.
#include "engine/machine/gpu.h"

namespace lockstep {

GpuReading read_gpus(const std::filesystem::path& /*sysfs*/) {
  return {.gpus = {}, .absence = "this program was built without CUDA", .possible = false};
}

}  // namespace lockstep
