#include "tests/engine/kernels/cuda/host_matrix_library.h"

#include <atomic>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "engine/base/check.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/cuda/launch_stream.h"

namespace lockstep {
namespace {

constexpr size_t kAllProducts = std::numeric_limits<size_t>::max();
std::atomic<size_t> products_left = kAllProducts;
std::atomic<size_t> libraries_closed = 0;

void multiply_now(const GpuMatrixProduct& product) {
  for (size_t token = 0; token < product.tokens; ++token) {
    const uint16_t* input = product.inputs + token * product.input_stride;
    for (size_t row = 0; row < product.rows; ++row) {
      const uint16_t* weights = product.weights + row * product.columns;
      float sum = 0;
      for (size_t column = 0; column < product.columns; ++column) {
        sum += bf16_to_float(weights[column]) * bf16_to_float(input[column]);
      }
      float& to = product.sums[token * product.sum_stride + row];
      to = product.accumulate ? sum + to : sum;
    }
  }
}

bool is_aligned(const void* address, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

class HostMatrixLibrary final : public GpuMatrixLibrary {
 public:
  explicit HostMatrixLibrary(int gpu) : gpu_(gpu) {}
  ~HostMatrixLibrary() override {
    if (!is_abandoned_) ++libraries_closed;
  }
  HostMatrixLibrary(const HostMatrixLibrary&) = delete;
  HostMatrixLibrary& operator=(const HostMatrixLibrary&) = delete;

  Result<void> prepare(void* stream, const GpuMatrixProduct& product) override {
    if (!tokens_.try_emplace(shape_of(product), product.tokens).second) return {};
    GpuMatrixProduct first = product;
    first.tokens = 1;  // there is no kernel to be brought anywhere
    multiply(stream, first);
    return state_;
  }

  void multiply(void* stream, const GpuMatrixProduct& product) override {
    const auto prepared = tokens_.find(shape_of(product));
    CHECK(prepared != tokens_.end() && product.tokens <= prepared->second,
          "{} rows of {} columns were not prepared for {} tokens", product.rows, product.columns,
          product.tokens);
    CHECK(product.rows % 32 == 0 && product.columns % 32 == 0 && product.input_stride % 8 == 0 &&
              is_aligned(product.weights, 256) && is_aligned(product.inputs, 16) &&
              is_aligned(product.sums, 16) && product.sum_stride % 4 == 0,
          "a product of {} rows of {} columns does not lie as a library wants it", product.rows,
          product.columns);
    if (!state_) return;
    if (products_left != kAllProducts && products_left-- == 0) {
      products_left = 0;
      state_ = machine_refused("gpu{}: the library refused a product", gpu_);
      return;
    }
    if (stream == nullptr) return multiply_now(product);
    static_cast<LaunchStream*>(stream)->enqueue_library([product] { multiply_now(product); });
  }

  Result<void> state() const override { return state_; }
  void abandon() override { is_abandoned_ = true; }

 private:
  using Shape = std::tuple<size_t, size_t, size_t>;

  static Shape shape_of(const GpuMatrixProduct& product) {
    return {product.rows, product.columns, product.sum_stride};
  }

  int gpu_;
  std::map<Shape, size_t> tokens_;  // the most
  Result<void> state_;
  bool is_abandoned_ = false;
};

}  // namespace

Result<std::unique_ptr<GpuMatrixLibrary>> open_host_matrix_library(
    int gpu, std::span<std::byte> /*workspace*/) {
  return std::make_unique<HostMatrixLibrary>(gpu);
}

void refuse_library_products(size_t count) {
  products_left = count;
}

void allow_library_products() {
  products_left = kAllProducts;
}

size_t closed_libraries() {
  return libraries_closed;
}

}  // namespace lockstep
