// The few functions of the CUDA driver that are called, which the runtime hands out: a .cu file is
// a module, and its kernels are functions of it.
#include <cuda.h>

#include <algorithm>
#include <string_view>

#include "tests/emulators/gpu/cuda/kernels.h"
#include "tests/emulators/gpu/cuda/runtime.h"

using namespace lockstep::ptx;

namespace {

CUfunction handle_of(RegisteredKernel* kernel) {
  return reinterpret_cast<CUfunction>(kernel);
}

// Null: it is no kernel.
RegisteredKernel* kernel_of(CUfunction function) {
  return find_kernel(function);
}

CUresult module_of(CUmodule* module, CUfunction function) {
  RegisteredKernel* const kernel = kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *module = reinterpret_cast<CUmodule>(&kernel->binary());
  return CUDA_SUCCESS;
}

CUresult function_count(unsigned* count, CUmodule module) {
  *count = static_cast<unsigned>(reinterpret_cast<FatBinary*>(module)->kernels().size());
  return CUDA_SUCCESS;
}

CUresult functions(CUfunction* functions, unsigned count, CUmodule module) {
  const auto& kernels = reinterpret_cast<FatBinary*>(module)->kernels();
  std::transform(kernels.begin(), kernels.begin() + std::min<size_t>(count, kernels.size()),
                 functions, handle_of);
  return CUDA_SUCCESS;
}

CUresult load(CUfunction function) {
  RegisteredKernel* const kernel = kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  kernel->bring_to(current_gpu());
  return CUDA_SUCCESS;
}

CUresult is_loaded(CUfunctionLoadingState* state, CUfunction function) {
  RegisteredKernel* const kernel = kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *state = kernel->is_on(current_gpu()) ? CU_FUNCTION_LOADING_STATE_LOADED
                                        : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}

struct EntryPoint {
  std::string_view name;
  void* address;
};

}  // namespace

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  RegisteredKernel* const kernel = find_kernel(symbol);
  if (kernel == nullptr) return told(cudaErrorInvalidDeviceFunction);
  *function = handle_of(kernel);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** address, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const EntryPoint points[] = {
      {"cuFuncGetModule", reinterpret_cast<void*>(&module_of)},
      {"cuModuleGetFunctionCount", reinterpret_cast<void*>(&function_count)},
      {"cuModuleEnumerateFunctions", reinterpret_cast<void*>(&functions)},
      {"cuFuncLoad", reinterpret_cast<void*>(&load)},
      {"cuFuncIsLoaded", reinterpret_cast<void*>(&is_loaded)},
  };
  const auto* const found = std::ranges::find(points, symbol, &EntryPoint::name);
  *address = found == std::end(points) ? nullptr : found->address;
  *result = *address == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
