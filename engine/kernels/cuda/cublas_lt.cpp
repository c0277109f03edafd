#include "engine/kernels/cuda/cublas_lt.h"

namespace lockstep {

Result<const CublasLt*> find_cublas_lt() {
  static const Result<CublasLt> loaded = [] {
    const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    return load_cublas_lt({name, "/usr/local/cuda/lib64/" + name});
  }();
  if (!loaded) return std::unexpected(loaded.error());
  return &*loaded;
}

}  // namespace lockstep
