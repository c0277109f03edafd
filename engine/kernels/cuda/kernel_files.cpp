// Asks the driver for the kernels of each .cu file (CUDA Driver API, "Module Management"): the
// runtime has no call that lists or loads them.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <span>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/gpu_kernel_load.h"

namespace lockstep {

bool note_kernel_file(const void* kernel);  // of kernel_file.h, which is for nvcc

namespace {

constexpr unsigned kVersion = 13000;  // of the driver's functions: the least that cuda.cmake takes

// One kernel of each file. Of constant initialization: files are noted before main(), in any order.
struct Files {
  std::array<const void*, 32> kernels = {};
  size_t count = 0;
};
constinit Files files;

struct Driver {
  decltype(&cuFuncGetModule) module_of = nullptr;
  decltype(&cuModuleGetFunctionCount) function_count = nullptr;
  decltype(&cuModuleEnumerateFunctions) functions = nullptr;
  decltype(&cuFuncIsLoaded) is_loaded = nullptr;
  decltype(&cuFuncLoad) load = nullptr;
};

std::unexpected<Error> refused(std::string_view call, int error) {
  return machine_refused("kernels cannot be loaded beforehand: {} fails with CUDA's error {}", call,
                         error);
}

template <typename Function>
Result<void> find(const char* name, Function*& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return refused(name, error);
  }
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    return machine_refused("kernels cannot be loaded beforehand: the driver has no {}", name);
  }
  function = reinterpret_cast<Function*>(address);
  return {};
}

Result<Driver> find_driver() {
  Driver driver;
  const Result<void> all[] = {find("cuFuncGetModule", driver.module_of),
                              find("cuModuleGetFunctionCount", driver.function_count),
                              find("cuModuleEnumerateFunctions", driver.functions),
                              find("cuFuncIsLoaded", driver.is_loaded),
                              find("cuFuncLoad", driver.load)};
  for (const Result<void>& found : all) {
    if (!found) return std::unexpected(found.error());
  }
  return driver;
}

Result<std::vector<CUfunction>> functions_of_file(const Driver& driver, const void* kernel) {
  cudaFunction_t function = nullptr;
  if (const cudaError_t error = cudaGetFuncBySymbol(&function, kernel); error != cudaSuccess) {
    cudaGetLastError();
    return refused("cudaGetFuncBySymbol", error);
  }
  CUmodule module = nullptr;
  if (const CUresult error = driver.module_of(&module, function); error != CUDA_SUCCESS) {
    return refused("cuFuncGetModule", error);
  }
  unsigned count = 0;
  if (const CUresult error = driver.function_count(&count, module); error != CUDA_SUCCESS) {
    return refused("cuModuleGetFunctionCount", error);
  }
  std::vector<CUfunction> functions(count);
  if (const CUresult error = driver.functions(functions.data(), count, module);
      error != CUDA_SUCCESS) {
    return refused("cuModuleEnumerateFunctions", error);
  }
  return functions;
}

Result<void> load(const Driver& driver, CUfunction function, KernelLoad& load) {
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  if (const CUresult error = driver.is_loaded(&state, function); error != CUDA_SUCCESS) {
    return refused("cuFuncIsLoaded", error);
  }
  ++load.kernel_count;
  if (state == CU_FUNCTION_LOADING_STATE_LOADED) return {};
  if (const CUresult error = driver.load(function); error != CUDA_SUCCESS) {
    return refused("cuFuncLoad", error);
  }
  ++load.loaded_count;
  return {};
}

}  // namespace

bool note_kernel_file(const void* kernel) {
  CHECK(files.count < files.kernels.size(), "there are more than {} .cu files",
        files.kernels.size());
  files.kernels[files.count++] = kernel;
  return true;
}

Result<KernelLoad> load_cuda_kernels() {
  const auto driver = find_driver();
  if (!driver) return std::unexpected(driver.error());
  KernelLoad sum;
  for (const void* kernel : std::span(files.kernels).first(files.count)) {
    const auto functions = functions_of_file(*driver, kernel);
    if (!functions) return std::unexpected(functions.error());
    for (CUfunction function : *functions) {
      if (auto loaded = load(*driver, function, sum); !loaded) {
        return std::unexpected(loaded.error());
      }
    }
  }
  return sum;
}

}  // namespace lockstep
