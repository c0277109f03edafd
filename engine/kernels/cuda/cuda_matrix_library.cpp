// Products of matrices by NVIDIA's cuBLASLt. Run with an emulated one so far
// (tests/emulators/gpu/cuda).
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/gpu_matrix_library.h"

namespace lockstep {
namespace {

// Kernels that the library offers for a shape, best first: the first that cuts no sum is taken.
constexpr int kOffered = 16;
constexpr uint32_t kRowAlignment = 16;     // bytes, of activations and sums
constexpr uint32_t kPanelAlignment = 256;  // of weights

// Row-major matrices are the library's column-major ones, transposed: sums^T = weights * inputs^T,
// where the weights are given as their transpose. The descriptors lie in this memory; none of them
// allocates.
struct Operands {
  cublasLtMatrixLayoutOpaque_t weights;
  cublasLtMatrixLayoutOpaque_t inputs;
  cublasLtMatrixLayoutOpaque_t sums;
};

cublasStatus_t describe(const GpuMatrixProduct& product, Operands& operands) {
  const cublasStatus_t statuses[] = {
      cublasLtMatrixLayoutInit(&operands.weights, CUDA_R_16BF, product.columns, product.rows,
                               static_cast<int64_t>(product.columns)),
      cublasLtMatrixLayoutInit(&operands.inputs, CUDA_R_16BF, product.columns, product.tokens,
                               static_cast<int64_t>(product.input_stride)),
      cublasLtMatrixLayoutInit(&operands.sums, CUDA_R_32F, product.rows, product.tokens,
                               static_cast<int64_t>(product.sum_stride))};
  for (const cublasStatus_t status : statuses) {
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t set(cublasLtMatmulPreferenceOpaque_t& preference,
                   cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value);
}

// Whether each of a kernel's sums is formed by one block, from the first column to the last.
bool cuts_no_sum(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t parts = 0;
  uint32_t scheme = 0;
  size_t written = 0;
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    return cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value,
                                                &written) == CUBLAS_STATUS_SUCCESS;
  };
  return read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) &&
         read(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme) && parts <= 1 &&
         scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

// Numbers of tokens with which a kernel must do that is to serve all of them: the few, the odd, and
// those beside the sizes of tiles.
std::vector<size_t> tried_tokens(size_t most) {
  std::vector<size_t> tried = {1, most};
  for (size_t size = 2; size < most; size *= 2) {
    for (const size_t tokens : {size - 1, size, size + 1}) tried.push_back(std::min(tokens, most));
  }
  return tried;
}

class CudaMatrixLibrary final : public GpuMatrixLibrary {
 public:
  CudaMatrixLibrary(int gpu, std::span<std::byte> workspace) : gpu_(gpu), workspace_(workspace) {}
  ~CudaMatrixLibrary() override {
    if (handle_ != nullptr && !is_abandoned_) cublasLtDestroy(handle_);
  }
  CudaMatrixLibrary(const CudaMatrixLibrary&) = delete;
  CudaMatrixLibrary& operator=(const CudaMatrixLibrary&) = delete;

  Result<void> open();
  Result<void> prepare(void* stream, const GpuMatrixProduct& product) override;
  void multiply(void* stream, const GpuMatrixProduct& product) override;
  Result<void> state() const override { return state_; }
  void abandon() override { is_abandoned_ = true; }

 private:
  struct Shape {
    size_t rows;
    size_t columns;
    size_t sum_stride;
    cublasLtMatmulAlgo_t algorithm;
  };

  const Shape* find(const GpuMatrixProduct& product) const {
    for (const Shape& shape : shapes_) {
      if (shape.rows == product.rows && shape.columns == product.columns &&
          shape.sum_stride == product.sum_stride) {
        return &shape;
      }
    }
    return nullptr;
  }

  bool takes_any_tokens(const cublasLtMatmulAlgo_t& algorithm, const GpuMatrixProduct& product);

  // It may be the GPU that has failed.
  std::unexpected<Error> failed(std::string_view what, cublasStatus_t status) {
    abandon();
    return machine_refused(
        "gpu{}: cuBLASLt, which computes prompts: {} failed: {} ({}); start again, without this "
        "GPU if it happens again (--devices)",
        gpu_, what, cublasLtGetStatusString(status), cublasLtGetStatusName(status));
  }

  int gpu_;
  std::span<std::byte> workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_ = {};
  cublasLtMatmulPreferenceOpaque_t preference_ = {};
  std::vector<Shape> shapes_;
  Result<void> state_;
  bool is_abandoned_ = false;
};

Result<void> CudaMatrixLibrary::open() {
  if (const auto status = cublasLtCreate(&handle_); status != CUBLAS_STATUS_SUCCESS) {
    handle_ = nullptr;
    return failed("opening it", status);
  }
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const cublasStatus_t statuses[] = {
      cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
      cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                     sizeof transposed),
      cublasLtMatmulPreferenceInit(&preference_),
      set<uint64_t>(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_.size()),
      set<uint32_t>(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    CUBLASLT_REDUCTION_SCHEME_NONE),
      set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kPanelAlignment),
      set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kRowAlignment),
      set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kRowAlignment),
      set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kRowAlignment)};
  for (const cublasStatus_t status : statuses) {
    if (status != CUBLAS_STATUS_SUCCESS) return failed("describing products", status);
  }
  return {};
}

// The library says of a kernel whether it computes a shape, and with how much memory: chosen for
// the most tokens, it is to compute fewer as well.
bool CudaMatrixLibrary::takes_any_tokens(const cublasLtMatmulAlgo_t& algorithm,
                                         const GpuMatrixProduct& product) {
  return std::ranges::all_of(tried_tokens(product.tokens), [&](size_t tokens) {
    GpuMatrixProduct part = product;
    part.tokens = tokens;
    Operands operands;
    if (describe(part, operands) != CUBLAS_STATUS_SUCCESS) return false;
    cublasLtMatmulHeuristicResult_t checked;
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_, &operation_, &operands.weights, &operands.inputs,
                                &operands.sums, &operands.sums, &algorithm, &checked);
    return status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= workspace_.size();
  });
}

Result<void> CudaMatrixLibrary::prepare(void* stream, const GpuMatrixProduct& product) {
  if (find(product) != nullptr) return {};
  Operands operands;
  if (const auto status = describe(product, operands); status != CUBLAS_STATUS_SUCCESS) {
    return failed("describing matrices", status);
  }
  cublasLtMatmulHeuristicResult_t offers[kOffered];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, &operation_, &operands.weights, &operands.inputs, &operands.sums, &operands.sums,
      &preference_, kOffered, offers, &count);
  if (status != CUBLAS_STATUS_SUCCESS) return failed("choosing a kernel", status);
  for (int index = 0; index < count; ++index) {
    const cublasLtMatmulHeuristicResult_t& offer = offers[index];
    if (offer.state != CUBLAS_STATUS_SUCCESS || !cuts_no_sum(offer.algo)) continue;
    if (!takes_any_tokens(offer.algo, product)) continue;
    shapes_.push_back({product.rows, product.columns, product.sum_stride, offer.algo});
    GpuMatrixProduct least = product;
    least.tokens = 1;
    multiply(stream, least);
    multiply(stream, product);
    return state_;
  }
  return machine_refused(
      "gpu{}: cuBLASLt {} has no kernel for {} rows of {} columns that cuts no sum and takes any "
      "number of tokens, among {}; use --devices cpu",
      gpu_, cublasLtGetVersion(), product.rows, product.columns, count);
}

void CudaMatrixLibrary::multiply(void* stream, const GpuMatrixProduct& product) {
  const Shape* shape = find(product);
  CHECK(shape != nullptr, "{} rows of {} columns were not prepared", product.rows, product.columns);
  if (!state_) return;
  Operands operands;
  cublasStatus_t status = describe(product, operands);
  if (status == CUBLAS_STATUS_SUCCESS) {
    const float one = 1;
    const float held = product.accumulate ? 1 : 0;
    status = cublasLtMatmul(handle_, &operation_, &one, product.weights, &operands.weights,
                            product.inputs, &operands.inputs, &held, product.sums, &operands.sums,
                            product.sums, &operands.sums, &shape->algorithm, workspace_.data(),
                            workspace_.size(), static_cast<cudaStream_t>(stream));
  }
  if (status != CUBLAS_STATUS_SUCCESS) state_ = failed("a product", status);
}

}  // namespace

Result<std::unique_ptr<GpuMatrixLibrary>> open_cuda_matrix_library(int gpu,
                                                                   std::span<std::byte> workspace) {
  auto library = std::make_unique<CudaMatrixLibrary>(gpu, workspace);
  if (auto opened = library->open(); !opened) return std::unexpected(opened.error());
  return library;
}

}  // namespace lockstep
