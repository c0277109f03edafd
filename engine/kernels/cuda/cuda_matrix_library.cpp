// Products of matrices by NVIDIA's cuBLASLt. Run with an emulated one so far
// (tests/emulators/gpu/cuda).
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/base/log.h"
#include "engine/kernels/cuda/cublas_lt.h"
#include "engine/kernels/gpu_matrix_library.h"

namespace lockstep {
namespace {

// Kernels that the library offers for a shape and a number of tokens, best first. It offers fewer
// where it has no more.
constexpr int kOffered = 64;
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

cublasStatus_t describe(const CublasLt& calls, const GpuMatrixProduct& product,
                        Operands& operands) {
  const auto init = [&](cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, size_t rows,
                        size_t columns, size_t stride) {
    return calls.init_layout(&layout, sizeof layout, type, rows, columns,
                             static_cast<int64_t>(stride));
  };
  const cublasStatus_t statuses[] = {
      init(operands.weights, CUDA_R_16BF, product.columns, product.rows, product.columns),
      init(operands.inputs, CUDA_R_16BF, product.columns, product.tokens, product.input_stride),
      init(operands.sums, CUDA_R_32F, product.rows, product.tokens, product.sum_stride)};
  for (const cublasStatus_t status : statuses) {
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Whether each of a kernel's sums is formed by one block, from the first column to the last.
bool cuts_no_sum(const CublasLt& calls, const cublasLtMatmulAlgo_t& algorithm) {
  int32_t parts = 0;
  uint32_t scheme = 0;
  size_t written = 0;
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    return calls.attribute(&algorithm, attribute, &value, sizeof value, &written) ==
           CUBLAS_STATUS_SUCCESS;
  };
  return read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) &&
         read(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme) && parts <= 1 &&
         scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

// Steps in which a kernel may take tokens, the best first.
constexpr std::array<size_t, 6> kSteps = {1, 8, 16, 32, 64, 128};

// Numbers of tokens with which a kernel must do that is to serve all of them: the few, the odd, and
// those beside the sizes of tiles; each once, and in whole steps.
std::vector<size_t> tried_tokens(size_t step, size_t most) {
  std::vector<size_t> tried = {1, most};
  for (size_t size = 2; size < most; size *= 2) {
    for (const size_t tokens : {size - 1, size, size + 1}) tried.push_back(std::min(tokens, most));
  }
  for (size_t& tokens : tried) tokens = std::max(tokens / step, size_t{1}) * step;
  std::ranges::sort(tried);
  const auto repeated = std::ranges::unique(tried);
  tried.erase(repeated.begin(), repeated.end());
  return tried;
}

// The inputs and sums of so many tokens, laid out as the product's.
size_t staged_input_bytes(const GpuMatrixProduct& product, size_t tokens) {
  return round_up<size_t>(tokens * product.input_stride * sizeof(uint16_t), kPanelAlignment);
}
size_t staged_sum_bytes(const GpuMatrixProduct& product, size_t tokens) {
  return round_up<size_t>(tokens * product.sum_stride * sizeof(float), kPanelAlignment);
}

// Numbers of tokens for which the library is asked what it offers. It thinks of one number at a
// time: a kernel that is the best for the most may be none for few.
std::vector<size_t> asked_tokens(size_t most) {
  std::vector<size_t> asked = {most};
  for (const size_t tokens : {size_t{512}, size_t{64}, size_t{1}}) {
    if (tokens < asked.back()) asked.push_back(tokens);
  }
  return asked;
}

class CudaMatrixLibrary final : public GpuMatrixLibrary {
 public:
  CudaMatrixLibrary(const CublasLt& calls, int gpu, std::span<std::byte> workspace)
      : calls_(calls), gpu_(gpu), workspace_(workspace) {}
  ~CudaMatrixLibrary() override {
    if (handle_ != nullptr && !is_abandoned_) calls_.destroy(handle_);
  }
  CudaMatrixLibrary(const CudaMatrixLibrary&) = delete;
  CudaMatrixLibrary& operator=(const CudaMatrixLibrary&) = delete;

  Result<void> open();
  Result<void> prepare(void* stream, const GpuMatrixProduct& product) override;
  void multiply(void* stream, const GpuMatrixProduct& product) override;
  Result<void> state() const override { return state_; }
  void abandon() override { is_abandoned_ = true; }

 private:
  // A kernel, and in which steps it takes tokens.
  struct Choice {
    cublasLtMatmulAlgo_t algorithm;
    size_t step;
  };
  struct Shape {
    size_t rows;
    size_t columns;
    size_t input_stride;
    size_t sum_stride;
    Choice choice;
  };

  const Shape* find(const GpuMatrixProduct& product) const {
    for (const Shape& shape : shapes_) {
      if (shape.rows == product.rows && shape.columns == product.columns &&
          shape.input_stride == product.input_stride && shape.sum_stride == product.sum_stride) {
        return &shape;
      }
    }
    return nullptr;
  }

  template <typename T>
  cublasStatus_t prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return calls_.set_preference(&preference_, attribute, &value, sizeof value);
  }
  Result<std::optional<Choice>> choose(const GpuMatrixProduct& product, size_t& count);
  Result<std::vector<cublasLtMatmulAlgo_t>> ask(const GpuMatrixProduct& product);
  std::optional<size_t> step_of(const cublasLtMatmulAlgo_t& algorithm,
                                const GpuMatrixProduct& product);
  bool takes(const cublasLtMatmulAlgo_t& algorithm, const GpuMatrixProduct& product,
             size_t workspace_bytes);
  std::optional<size_t> workspace_for(const GpuMatrixProduct& product, size_t step) const;
  void multiply_last(cudaStream_t stream, const GpuMatrixProduct& last, const Choice& choice);
  void enqueue(cudaStream_t stream, const GpuMatrixProduct& product, const Choice& choice);

  // It may be the GPU that has failed.
  std::unexpected<Error> failed(std::string_view what, cublasStatus_t status) {
    abandon();
    return machine_refused(
        "gpu{}: cuBLASLt, which computes prompts: {} failed: {} ({}); start again, without this "
        "GPU if it happens again (--devices)",
        gpu_, what, calls_.status_string(status), calls_.status_name(status));
  }

  const CublasLt& calls_;
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
  if (const auto status = calls_.create(&handle_); status != CUBLAS_STATUS_SUCCESS) {
    handle_ = nullptr;
    return failed("opening it", status);
  }
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const cublasStatus_t statuses[] = {
      calls_.init_operation(&operation_, sizeof operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
      calls_.set_operation(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                           sizeof transposed),
      calls_.init_preference(&preference_, sizeof preference_),
      prefer<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_.size()),
      prefer<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_NONE),
      prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kPanelAlignment),
      prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kRowAlignment),
      prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kRowAlignment),
      prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kRowAlignment)};
  for (const cublasStatus_t status : statuses) {
    if (status != CUBLAS_STATUS_SUCCESS) return failed("describing products", status);
  }
  return {};
}

// The library says of a kernel whether it computes a shape, and with how much memory.
bool CudaMatrixLibrary::takes(const cublasLtMatmulAlgo_t& algorithm,
                              const GpuMatrixProduct& product, size_t workspace_bytes) {
  Operands operands;
  if (describe(calls_, product, operands) != CUBLAS_STATUS_SUCCESS) return false;
  cublasLtMatmulHeuristicResult_t checked;
  const cublasStatus_t status =
      calls_.check(handle_, &operation_, &operands.weights, &operands.inputs, &operands.sums,
                   &operands.sums, &algorithm, &checked);
  return status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= workspace_bytes;
}

// The first bytes of the workspace, which are the kernel's where it takes tokens in such steps. One
// step's inputs and sums lie behind. None: there is no space for those.
std::optional<size_t> CudaMatrixLibrary::workspace_for(const GpuMatrixProduct& product,
                                                       size_t step) const {
  if (step == 1) return workspace_.size();
  const size_t bytes = staged_input_bytes(product, step) + staged_sum_bytes(product, step);
  if (bytes > workspace_.size()) return std::nullopt;
  return workspace_.size() - bytes;
}

// The smallest step of tokens in which the kernel takes as many as the product has and any fewer;
// none: it does not even in the largest that there is space for.
std::optional<size_t> CudaMatrixLibrary::step_of(const cublasLtMatmulAlgo_t& algorithm,
                                                 const GpuMatrixProduct& product) {
  const auto takes_steps = [&](size_t step) {
    const auto workspace = workspace_for(product, step);
    if (!workspace) return false;
    return std::ranges::all_of(tried_tokens(step, product.tokens), [&](size_t tokens) {
      GpuMatrixProduct part = product;
      part.tokens = tokens;
      return takes(algorithm, part, *workspace);
    });
  };
  const auto* const found = std::ranges::find_if(kSteps, takes_steps);
  return found == kSteps.end() ? std::nullopt : std::optional(*found);
}

// The kernels that the library offers for the product's number of tokens and that cut no sum, best
// first.
Result<std::vector<cublasLtMatmulAlgo_t>> CudaMatrixLibrary::ask(const GpuMatrixProduct& product) {
  Operands operands;
  if (const auto status = describe(calls_, product, operands); status != CUBLAS_STATUS_SUCCESS) {
    return failed("describing matrices", status);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> offers(kOffered);
  int count = 0;
  const cublasStatus_t status =
      calls_.offers(handle_, &operation_, &operands.weights, &operands.inputs, &operands.sums,
                    &operands.sums, &preference_, kOffered, offers.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> whole;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return whole;
  if (status != CUBLAS_STATUS_SUCCESS) return failed("choosing a kernel", status);
  for (const auto& offer : std::span(offers).first(static_cast<size_t>(count))) {
    if (offer.state == CUBLAS_STATUS_SUCCESS && cuts_no_sum(calls_, offer.algo)) {
      whole.push_back(offer.algo);
    }
  }
  return whole;
}

// Best first: a step costs a product of few tokens less than another kernel costs one of many.
// `count`: how many it chooses among. None: none of them will do.
Result<std::optional<CudaMatrixLibrary::Choice>> CudaMatrixLibrary::choose(
    const GpuMatrixProduct& product, size_t& count) {
  count = 0;
  for (const size_t tokens : asked_tokens(product.tokens)) {
    GpuMatrixProduct asked = product;
    asked.tokens = tokens;
    const auto offers = ask(asked);
    if (!offers) return std::unexpected(offers.error());
    for (const cublasLtMatmulAlgo_t& algorithm : *offers) {
      ++count;
      if (const auto step = step_of(algorithm, product)) return Choice{algorithm, *step};
    }
  }
  return std::nullopt;
}

Result<void> CudaMatrixLibrary::prepare(void* stream, const GpuMatrixProduct& product) {
  if (find(product) != nullptr) return {};
  size_t count = 0;
  const auto choice = choose(product, count);
  if (!choice) return std::unexpected(choice.error());
  if (!*choice) {
    return machine_refused(
        "gpu{}: cuBLASLt {} has no kernel for {} rows of {} columns that cuts no sum and takes any "
        "number of tokens up to {} or whole steps of them, among {}; use --devices cpu, or another "
        "release of cuBLAS",
        gpu_, calls_.version(), product.rows, product.columns, product.tokens, count);
  }
  if ((*choice)->step > 1) {
    spdlog::info("gpu{}: cuBLASLt {} multiplies {} rows of {} columns with tokens in steps of {}",
                 gpu_, calls_.version(), product.rows, product.columns, (*choice)->step);
  }
  shapes_.push_back(
      {product.rows, product.columns, product.input_stride, product.sum_stride, **choice});
  GpuMatrixProduct least = product;
  least.tokens = 1;
  multiply(stream, least);
  multiply(stream, product);
  return state_;
}

void CudaMatrixLibrary::multiply(void* stream, const GpuMatrixProduct& product) {
  const Shape* shape = find(product);
  CHECK(shape != nullptr, "{} rows of {} columns were not prepared", product.rows, product.columns);
  if (!state_) return;
  const size_t last_tokens = product.tokens % shape->choice.step;
  GpuMatrixProduct part = product;
  part.tokens -= last_tokens;
  if (part.tokens > 0) enqueue(static_cast<cudaStream_t>(stream), part, shape->choice);
  if (last_tokens == 0) return;
  part.inputs += part.tokens * part.input_stride;
  part.sums += part.tokens * part.sum_stride;
  part.tokens = last_tokens;
  multiply_last(static_cast<cudaStream_t>(stream), part, shape->choice);
}

// Fewer tokens than a step has, in the workspace: whatever the other rows hold there, no sum of
// these depends on it. What lies between the rows of sums, and what they add to, is copied there
// and back.
void CudaMatrixLibrary::multiply_last(cudaStream_t stream, const GpuMatrixProduct& last,
                                      const Choice& choice) {
  std::byte* const staged = workspace_.data() + workspace_for(last, choice.step).value();
  GpuMatrixProduct whole = last;
  whole.inputs = reinterpret_cast<const uint16_t*>(staged);
  whole.sums = reinterpret_cast<float*>(staged + staged_input_bytes(last, choice.step));
  whole.tokens = choice.step;
  const size_t elements = (last.tokens - 1) * last.input_stride + last.columns;
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    const cudaError_t copied = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    if (copied != cudaSuccess && state_) state_ = failed("a copy", CUBLAS_STATUS_EXECUTION_FAILED);
  };
  const size_t sums = (last.tokens - 1) * last.sum_stride + last.rows;
  copy(staged, last.inputs, elements * sizeof(uint16_t));
  if (last.accumulate || last.sum_stride > last.rows) {
    copy(whole.sums, last.sums, sums * sizeof(float));
  }
  enqueue(stream, whole, choice);
  copy(last.sums, whole.sums, sums * sizeof(float));
}

void CudaMatrixLibrary::enqueue(cudaStream_t stream, const GpuMatrixProduct& product,
                                const Choice& choice) {
  Operands operands;
  cublasStatus_t status = describe(calls_, product, operands);
  if (status == CUBLAS_STATUS_SUCCESS) {
    const float one = 1;
    const float held = product.accumulate ? 1 : 0;
    status = calls_.multiply(handle_, &operation_, &one, product.weights, &operands.weights,
                             product.inputs, &operands.inputs, &held, product.sums, &operands.sums,
                             product.sums, &operands.sums, &choice.algorithm, workspace_.data(),
                             workspace_for(product, choice.step).value(), stream);
  }
  if (status != CUBLAS_STATUS_SUCCESS) state_ = failed("a product", status);
}

}  // namespace

Result<void> find_cuda_matrix_library() {
  if (const auto calls = find_cublas_lt(); !calls) return std::unexpected(calls.error());
  return {};
}

Result<std::unique_ptr<GpuMatrixLibrary>> open_cuda_matrix_library(int gpu,
                                                                   std::span<std::byte> workspace) {
  const auto calls = find_cublas_lt();
  if (!calls) return std::unexpected(calls.error());
  auto library = std::make_unique<CudaMatrixLibrary>(**calls, gpu, workspace);
  if (auto opened = library->open(); !opened) return std::unexpected(opened.error());
  return library;
}

}  // namespace lockstep
