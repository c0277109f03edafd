#include <fmt/format.h>

#include "engine/base/dynamic_library.h"
#include "engine/kernels/cuda/cublas_lt.h"

namespace lockstep {

Result<CublasLt> load_cublas_lt(std::initializer_list<std::string> names) {
  const auto refused = [](std::string_view why) {
    return machine_refused(
        "cuBLASLt, which computes prompts on GPUs, cannot be loaded: {}. Install NVIDIA's cuBLAS "
        "{}, a part of the CUDA toolkit and of Python's wheel nvidia-cublas, where the loader "
        "looks (ldconfig, LD_LIBRARY_PATH), or use --devices cpu",
        why, CUBLAS_VER_MAJOR);
  };
  const auto library = DynamicLibrary::open(names);
  if (!library) return refused(library.error().message);
  CublasLt calls;
  FunctionTaker take(*library);
  take("cublasLtCreate", calls.create);
  take("cublasLtDestroy", calls.destroy);
  take("cublasLtGetVersion", calls.version);
  take("cublasLtGetStatusName", calls.status_name);
  take("cublasLtGetStatusString", calls.status_string);
  take("cublasLtMatrixLayoutInit_internal", calls.init_layout);
  take("cublasLtMatmulDescInit_internal", calls.init_operation);
  take("cublasLtMatmulPreferenceInit_internal", calls.init_preference);
  take("cublasLtMatmulDescSetAttribute", calls.set_operation);
  take("cublasLtMatmulPreferenceSetAttribute", calls.set_preference);
  take("cublasLtMatmulAlgoGetHeuristic", calls.offers);
  take("cublasLtMatmulAlgoCheck", calls.check);
  take("cublasLtMatmulAlgoConfigGetAttribute", calls.attribute);
  take("cublasLtMatmul", calls.multiply);
  if (take.missing() != nullptr)
    return refused(fmt::format("{} has no {}", *names.begin(), take.missing()));
  return calls;
}

}  // namespace lockstep
