// The emulated cuBLASLt: products of matrices as cublasLt.h describes them, in column order, by the
// host. What it does not know it refuses.
#include <cublasLt.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/kernels/cuda/cublas_lt.h"
#include "tests/emulators/gpu/cuda/cublas_lt_offers.h"
#include "tests/emulators/gpu/cuda/matrix_product.h"
#include "tests/emulators/gpu/cuda/runtime.h"

using namespace lockstep::ptx;

struct cublasLtContext {
  int gpu;
};

namespace {

constexpr size_t kWorkspaceBytes = 4096;  // what its kernels take, if they may

// The contents of the library's opaque descriptors.
struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transposed_a;
  cublasOperation_t transposed_b;
};

struct Preference {
  uint64_t workspace_bytes;
  uint32_t alignments[4];  // of A, B, C, D
};

// A kernel, for the matrices that it was chosen for.
struct Algorithm {
  uint64_t mark;
  uint32_t kernel;  // of offered_kernels()
  uint32_t workspace_bytes;
  uint32_t alignments[4];
};
constexpr uint64_t kMark = 0x504c41594544;

template <typename T, typename Opaque>
T& view(Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(*opaque) && alignof(T) <= alignof(Opaque));
  return *reinterpret_cast<T*>(opaque);
}
template <typename T, typename Opaque>
const T& view(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(*opaque) && alignof(T) <= alignof(Opaque));
  return *reinterpret_cast<const T*>(opaque);
}

template <typename T>
cublasStatus_t read(T& value, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof(value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, from, sizeof(value));
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t write(const T& value, void* to, size_t bytes, size_t* written) {
  if (to == nullptr || bytes != sizeof(value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, &value, sizeof(value));
  *written = sizeof(value);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename... Arguments>
cublasStatus_t refused(cublasStatus_t status, fmt::format_string<Arguments...> words,
                       Arguments&&... arguments) {
  fmt::print(stderr, "emulated cuBLASLt: {}\n",
             fmt::format(words, std::forward<Arguments>(arguments)...));
  return status;
}

cublasStatus_t describe(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                        cublasLtMatrixLayout_t d, MatrixProduct& product) {
  const auto& described = view<Operation>(operation);
  if (described.compute != CUBLAS_COMPUTE_32F || described.scale != CUDA_R_32F) {
    return refused(CUBLAS_STATUS_NOT_SUPPORTED, "only sums in f32 are emulated");
  }
  product.a = view<MatrixLayout>(a);
  product.b = view<MatrixLayout>(b);
  product.c = view<MatrixLayout>(c);
  product.d = view<MatrixLayout>(d);
  product.transposed_a = described.transposed_a != CUBLAS_OP_N;
  product.transposed_b = described.transposed_b != CUBLAS_OP_N;
  const std::string wrong = product.check();
  return wrong.empty() ? CUBLAS_STATUS_SUCCESS : refused(CUBLAS_STATUS_INVALID_VALUE, "{}", wrong);
}

const OfferedKernel& kernel_of(const cublasLtMatmulAlgo_t& algorithm) {
  return offered_kernels()[view<Algorithm>(&algorithm).kernel];
}

bool takes(const OfferedKernel& kernel, const MatrixProduct& product) {
  return product.d.columns % kernel.column_step == 0;
}

}  // namespace

namespace lockstep {

// In the place of cublas_lt.cpp's.
Result<const CublasLt*> find_cublas_lt() {
  static constexpr CublasLt kCalls = {.create = &cublasLtCreate,
                                      .destroy = &cublasLtDestroy,
                                      .version = &cublasLtGetVersion,
                                      .status_name = &cublasLtGetStatusName,
                                      .status_string = &cublasLtGetStatusString,
                                      .init_layout = &cublasLtMatrixLayoutInit_internal,
                                      .init_operation = &cublasLtMatmulDescInit_internal,
                                      .init_preference = &cublasLtMatmulPreferenceInit_internal,
                                      .set_operation = &cublasLtMatmulDescSetAttribute,
                                      .set_preference = &cublasLtMatmulPreferenceSetAttribute,
                                      .offers = &cublasLtMatmulAlgoGetHeuristic,
                                      .check = &cublasLtMatmulAlgoCheck,
                                      .attribute = &cublasLtMatmulAlgoConfigGetAttribute,
                                      .multiply = &cublasLtMatmul};
  if (const char* const name = std::getenv("EMULATED_CUBLAS_LT")) {
    auto loaded = load_cublas_lt({name});
    if (!loaded) return std::unexpected(std::move(loaded).error());
  }
  return &kCalls;
}

}  // namespace lockstep

std::vector<OfferedKernel>& lockstep::ptx::offered_kernels() {
  static std::vector<OfferedKernel> kernels(1);
  return kernels;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (state_of_current() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{current_gpu()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "another status";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t stride) {
  if (size < sizeof(*layout)) return CUBLAS_STATUS_INVALID_VALUE;
  view<MatrixLayout>(layout) = {type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if (size < sizeof(*operation)) return CUBLAS_STATUS_INVALID_VALUE;
  view<Operation>(operation) = {compute, scale, CUBLAS_OP_N, CUBLAS_OP_N};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto& described = view<Operation>(operation);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) return read(described.transposed_a, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) return read(described.transposed_b, value, bytes);
  return refused(CUBLAS_STATUS_NOT_SUPPORTED, "attribute {} of a product is not emulated",
                 static_cast<int>(attribute));
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t size) {
  if (size < sizeof(*preference)) return CUBLAS_STATUS_INVALID_VALUE;
  view<Preference>(preference) = {0, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto& preferred = view<Preference>(preference);
  uint32_t schemes = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return read(preferred.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return read(preferred.alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return read(preferred.alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return read(preferred.alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return read(preferred.alignments[3], value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return read(schemes, value, bytes);
    default:
      return refused(CUBLAS_STATUS_NOT_SUPPORTED, "preference {} is not emulated",
                     static_cast<int>(attribute));
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t offers[],
                                              int* count) {
  *count = 0;
  MatrixProduct product;
  const cublasStatus_t status = describe(operation, a, b, c, d, product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto& preferred = view<Preference>(preference);
  for (uint32_t kernel = 0; kernel < offered_kernels().size() && *count < asked; ++kernel) {
    const OfferedKernel& offered = offered_kernels()[kernel];
    if (!takes(offered, product) || product.d.columns > offered.offered_columns_max) continue;
    cublasLtMatmulHeuristicResult_t& offer = offers[(*count)++];
    offer = {};
    auto& algorithm = view<Algorithm>(&offer.algo);
    algorithm.mark = kMark;
    algorithm.kernel = kernel;
    algorithm.workspace_bytes =
        static_cast<uint32_t>(std::min<uint64_t>(kWorkspaceBytes, preferred.workspace_bytes));
    std::memcpy(algorithm.alignments, preferred.alignments, sizeof(algorithm.alignments));
    offer.workspaceSize = algorithm.workspace_bytes;
    offer.state = CUBLAS_STATUS_SUCCESS;
  }
  return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  MatrixProduct product;
  const cublasStatus_t status = describe(operation, a, b, c, d, product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (view<Algorithm>(algorithm).mark != kMark) return CUBLAS_STATUS_INVALID_VALUE;
  if (!takes(kernel_of(*algorithm), product)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algorithm;
  result->workspaceSize = view<Algorithm>(algorithm).workspace_bytes;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) {
    return write(int32_t{kernel_of(*algorithm).cuts_sums ? 2 : 1}, value, bytes, written);
  }
  if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) {
    return write(uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}, value, bytes, written);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t handle_of_stream) {
  MatrixProduct product;
  const cublasStatus_t status =
      describe(operation, a_layout, b_layout, c_layout, d_layout, product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto& chosen = view<Algorithm>(algorithm);
  CUstream_st& stream = stream_of(handle_of_stream);
  if (chosen.mark != kMark || chosen.workspace_bytes > workspace_bytes) {
    return refused(CUBLAS_STATUS_INVALID_VALUE, "a workspace of {} bytes, or no algorithm",
                   workspace_bytes);
  }
  if (!takes(kernel_of(*algorithm), product)) {
    return refused(CUBLAS_STATUS_NOT_SUPPORTED, "{} columns by a kernel that takes steps of {}",
                   product.d.columns, kernel_of(*algorithm).column_step);
  }
  if (stream.gpu.index() != handle->gpu || current_gpu() != handle->gpu) {
    return refused(CUBLAS_STATUS_EXECUTION_FAILED,
                   "a stream of another GPU, or used by a thread of "
                   "another");
  }
  const void* const pointers[] = {a, b, c, d};
  for (size_t index = 0; index < 4; ++index) {
    if (reinterpret_cast<uint64_t>(pointers[index]) % chosen.alignments[index] == 0) continue;
    return refused(CUBLAS_STATUS_INVALID_VALUE, "operand {} is not aligned to {} bytes",
                   "ABCD"[index], chosen.alignments[index]);
  }
  std::memcpy(&product.alpha, alpha, sizeof(product.alpha));
  std::memcpy(&product.beta, beta, sizeof(product.beta));
  product.addresses = {reinterpret_cast<uint64_t>(a), reinterpret_cast<uint64_t>(b),
                       reinterpret_cast<uint64_t>(c), reinterpret_cast<uint64_t>(d)};
  product.workspace = reinterpret_cast<uint64_t>(workspace);
  product.workspace_bytes = chosen.workspace_bytes;
  Step step;
  step.kind = Step::Kind::kProduct;
  step.task = [product, gpu = handle->gpu] {
    return product.compute(Machine::get().allocations(), gpu);
  };
  return enqueue(stream, std::move(step)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                         : CUBLAS_STATUS_EXECUTION_FAILED;
}
