// The functions of NVIDIA's cuBLASLt that are called, by the names that cublasLt.h gives them. The
// library is loaded when it is first asked for: a daemon that uses no GPU starts without it.
#pragma once

#include <cublasLt.h>

#include <initializer_list>
#include <string>

#include "engine/base/result.h"

namespace lockstep {

struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  // The descriptors lie in the caller's memory. cublasLt.h has functions round these that know the
  // sizes.
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) init_operation = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) offers = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) attribute = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};

// Loads the first of these that can be, names or paths. Fails with kMachineRefused: the library and
// the remedy.
Result<CublasLt> load_cublas_lt(std::initializer_list<std::string> names);

// Loads it once, from where the loader looks or else from the toolkit's usual folder. On emulated
// GPUs their own. Fails as load_cublas_lt() does, again at every call.
Result<const CublasLt*> find_cublas_lt();

}  // namespace lockstep
