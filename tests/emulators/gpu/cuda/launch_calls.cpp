// The emulated CUDA runtime: kernels, and what nvcc's code for the host calls.
#include <algorithm>
#include <cstring>

#include "tests/emulators/gpu/cuda/kernels.h"
#include "tests/emulators/gpu/cuda/multiprocessors.h"
#include "tests/emulators/gpu/cuda/runtime.h"

using namespace lockstep::ptx;

namespace {

constexpr uint32_t kGridRowsMax = 65535;  // and as many layers
constexpr uint32_t kGridColumnsMax = 0x7FFFFFFF;
constexpr uint32_t kBlockLayersMax = 64;

// Configurations that kernel<<<...>>>() has pushed and its launch has yet to pop.
thread_local std::vector<cudaLaunchConfig_t> configurations;

Size3 size_of(const dim3& size) {
  return {size.x, size.y, size.z};
}

// Which of CUDA's limits a launch breaks.
cudaError_t check(const cudaLaunchConfig_t& config, RegisteredKernel& registered,
                  const Kernel& kernel) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (blocks == 0 || grid.x > kGridColumnsMax || grid.y > kGridRowsMax || grid.z > kGridRowsMax ||
      threads == 0 || threads > kThreadsMax || block.z > kBlockLayersMax) {
    return told(cudaErrorInvalidConfiguration, "{}: {} x {} x {} blocks of {} threads",
                kernel.name(), grid.x, grid.y, grid.z, threads);
  }
  if (threads > kernel.threads_max()) {
    return told(cudaErrorLaunchOutOfResources, "{}: {} threads; its launch bounds are {}",
                kernel.name(), threads, kernel.threads_max());
  }
  const uint32_t allowed = registered.dynamic_shared_max(current_gpu());
  if (config.dynamicSmemBytes > allowed) {
    return told(cudaErrorInvalidValue, "{}: {} bytes of shared memory; {} were asked for before",
                kernel.name(), config.dynamicSmemBytes, allowed);
  }
  return cudaSuccess;
}

// False: it is none that is emulated.
bool take(const cudaLaunchAttribute& attribute, Step& step) {
  switch (attribute.id) {
    case cudaLaunchAttributeProgrammaticStreamSerialization:
      step.begins_early = attribute.val.programmaticStreamSerializationAllowed != 0;
      return true;
    case cudaLaunchAttributePreferredSharedMemoryCarveout:  // how fast it is, no more
      return attribute.val.sharedMemCarveout <= 100;
    default:
      return false;
  }
}

cudaError_t launch(const cudaLaunchConfig_t& config, RegisteredKernel* registered, void** args) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (registered == nullptr) return told(cudaErrorInvalidDeviceFunction);
  const Kernel* const kernel = registered->load();
  if (kernel == nullptr) return told(cudaErrorInvalidKernelImage);
  if (const cudaError_t refused = check(config, *registered, *kernel); refused != cudaSuccess) {
    return refused;
  }
  CUstream_st& stream = stream_of(config.stream);
  if (stream.gpu.index() != current_gpu()) {
    return told(cudaErrorInvalidResourceHandle,
                "{}: on a stream of gpu{} by a thread that uses "
                "gpu{}",
                kernel->name(), stream.gpu.index(), current_gpu());
  }
  registered->bring_to(current_gpu());
  Step step;
  step.kind = Step::Kind::kKernel;
  for (unsigned index = 0; index < config.numAttrs; ++index) {
    if (!take(config.attrs[index], step)) {
      return told(cudaErrorInvalidValue, "{}: launch attribute {} is not emulated, or out of range",
                  kernel->name(), static_cast<int>(config.attrs[index].id));
    }
  }
  step.launch.kernel = kernel;
  step.launch.grid = size_of(config.gridDim);
  step.launch.block = size_of(config.blockDim);
  step.launch.dynamic_shared_bytes = static_cast<uint32_t>(config.dynamicSmemBytes);
  step.launch.refuses_unwritten_shared = Machine::get().refuses_unwritten();
  step.launch.refuses_shared_races = Machine::get().refuses_races();
  step.launch.parameters.resize(kernel->parameter_bytes());
  size_t index = 0;
  for (const Parameter& parameter : kernel->parameters()) {
    std::memcpy(step.launch.parameters.data() + parameter.offset, args[index++], parameter.bytes);
  }
  return enqueue(stream, std::move(step));
}

}  // namespace

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** args) {
  return launch(*config, find_kernel(function), args);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  RegisteredKernel* const registered = find_kernel(function);
  if (registered == nullptr) return told(cudaErrorInvalidDeviceFunction);
  const Kernel* const kernel = registered->load();
  if (kernel == nullptr) return told(cudaErrorInvalidKernelImage);
  *attributes = {};
  attributes->sharedSizeBytes = kernel->static_shared_bytes();
  attributes->localSizeBytes = kernel->local_bytes();
  attributes->maxThreadsPerBlock = static_cast<int>(kernel->threads_max());
  attributes->ptxVersion = registered->ptx_version();
  attributes->binaryVersion = attributes->ptxVersion;
  attributes->maxDynamicSharedSizeBytes =
      static_cast<int>(registered->dynamic_shared_max(current_gpu()));
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  RegisteredKernel* const registered = find_kernel(function);
  if (registered == nullptr) return told(cudaErrorInvalidDeviceFunction);
  const Kernel* const kernel = registered->load();
  if (kernel == nullptr) return told(cudaErrorInvalidKernelImage);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
    return told(cudaErrorInvalidValue, "cudaFuncSetAttribute: {} is not emulated",
                static_cast<int>(attribute));
  }
  if (value < 0 || static_cast<uint32_t>(value) + kernel->static_shared_bytes() > kSharedBytesMax) {
    return told(cudaErrorInvalidValue, "{}: {} bytes of shared memory are more than a block has",
                kernel->name(), value);
  }
  registered->set_dynamic_shared_max(current_gpu(), static_cast<uint32_t>(value));
  return cudaSuccess;
}

// Functions that nvcc's code for the host calls; the prototypes are those of crt/host_runtime.h and
// crt/device_functions.h.
extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(register_binary(wrapper));
}

void __cudaRegisterFatBinaryEnd(void**) {}

// Kernels may run while the process ends.
void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) {
  return 1;
}

void __cudaRegisterFunction(void** binary, const char* host_function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {
  register_kernel(*reinterpret_cast<FatBinary*>(binary), host_function, name);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     CUstream_st* stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  configurations.push_back(config);
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  if (configurations.empty()) return told(cudaErrorMissingConfiguration);
  const cudaLaunchConfig_t& config = configurations.back();
  *grid = config.gridDim;
  *block = config.blockDim;
  *shared_bytes = config.dynamicSmemBytes;
  *static_cast<cudaStream_t*>(stream) = config.stream;
  configurations.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(find_kernel(function));
  return *kernel == nullptr ? told(cudaErrorInvalidDeviceFunction) : cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return launch(config, find_kernel(kernel), args);
}

}  // extern "C"
