// The matrix unit that AMX is: eight tiles of up to 16 rows of 64 bytes, and the product of bf16
// tiles. What it computes is written out in kernel_table.h. Tests compare it with a model in plain
// C++, and run its instructions on processors that have none by emulating each.
//
// The instructions are written as assembly, with the memory that they read and write said: GCC 12's
// intrinsics for them keep silent about it, and the stores that fill a configuration, or a tile's
// memory, are dropped or moved behind them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

// The tiles of one thread, from construction to destruction. What is in them does not outlive a
// change of shape.
class MatrixUnit {
 public:
  MatrixUnit() = default;
  ~MatrixUnit() {
    if (first_rows_ != 0) asm volatile("tilerelease" ::: "memory");
  }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;

  // Tiles 0, 1 and 4 get `first` rows, 2, 3 and 5 `second`, 6 and 7 16 (1 to 16 each).
  void shape(size_t first, size_t second) {
    if (first == first_rows_ && second == second_rows_) return;
    first_rows_ = first;
    second_rows_ = second;
    const auto a = static_cast<uint8_t>(first);
    const auto b = static_cast<uint8_t>(second);
    const Configuration configuration = {.rows = {a, a, b, b, a, b, 16, 16}};
    asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
  }

  template <int kTile>
  [[gnu::always_inline]] void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // A tile's rows, `stride` bytes apart.
  template <int kTile>
  [[gnu::always_inline]] void load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  // The same of memory that will not be wanted again soon.
  template <int kTile>
  [[gnu::always_inline]] void load_once(const void* from, size_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] void store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // Tile kSum += tile kFirst x tile kSecond: rows of 32 bf16 times 16 rows of 16 pairs.
  template <int kSum, int kFirst, int kSecond>
  [[gnu::always_inline]] void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kFirst), "i"(kSecond));
  }

 private:
  // The configuration that LDTILECFG reads.
  struct alignas(64) Configuration {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Configuration) == 64);

  size_t first_rows_ = 0;
  size_t second_rows_ = 0;
};

}  // namespace
}  // namespace lockstep
