// mma.m16n8k16: a product of matrices whose elements lie spread over a warp's lanes. Which lane has
// which is said in PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "tests/emulators/gpu/control.h"
#include "tests/emulators/gpu/rounding.h"
#include "tests/emulators/gpu/warp.h"

namespace lockstep::ptx {
namespace {

constexpr uint32_t kAllLanes = 0xffffffff;

// 8 x 8 elements of A or B, of which every lane has two in one register: in groups of 4 lanes, a
// row of A or a column of B, the lower half of a register before the upper one.
using Fragment = std::array<std::array<float, 8>, 8>;

struct Bf16 {
  static void unpack(const uint32_t* lanes, Fragment& to) {
    for (size_t group = 0; group < 8; ++group) {
      const __m256i pairs = _mm256_cvtepu16_epi32(load(lanes + 4 * group));
      _mm256_storeu_ps(to[group].data(), _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
    }
  }
  static __m128i load(const uint32_t* lanes) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes));
  }
};

struct F16 {
  static void unpack(const uint32_t* lanes, Fragment& to) {
    for (size_t group = 0; group < 8; ++group) {
      _mm256_storeu_ps(to[group].data(), _mm256_cvtph_ps(Bf16::load(lanes + 4 * group)));
    }
  }
};

// sum += a b, all rows at once.
void add_product(const Fragment& a, const Fragment& b, Fragment& sum) {
  __m256 sums[8];
  for (size_t row = 0; row < 8; ++row) sums[row] = _mm256_loadu_ps(sum[row].data());
  for (size_t k = 0; k < 8; ++k) {
    const __m256 factors = _mm256_loadu_ps(b[k].data());
    for (size_t row = 0; row < 8; ++row) {
      sums[row] = _mm256_fmadd_ps(_mm256_set1_ps(a[row][k]), factors, sums[row]);
    }
  }
  for (size_t row = 0; row < 8; ++row) _mm256_storeu_ps(sum[row].data(), sums[row]);
}

// Products are exact in a float; every sum is rounded, in the order of the depth. (A GPU adds
// several products at once, with a few bits more or less.)
template <typename Type>
void multiply(Warp& warp, const Instruction& instruction) {
  if (!warp.gathered(kAllLanes, instruction)) return;
  const uint32_t* const registers = instruction.registers;
  // a: the upper and the lower 8 rows of A's left half, then of its right half. b: the upper and
  // the lower 8 rows of B; registers hold B's columns, so each fragment is transposed.
  alignas(32) std::array<Fragment, 4> a;
  alignas(32) std::array<Fragment, 2> b;
  for (size_t r = 0; r < 4; ++r) Type::unpack(warp.lanes<const uint32_t>(registers[4 + r]), a[r]);
  for (size_t r = 0; r < 2; ++r) {
    Fragment columns;
    Type::unpack(warp.lanes<const uint32_t>(registers[8 + r]), columns);
    for (size_t row = 0; row < 8; ++row) {
      for (size_t column = 0; column < 8; ++column) b[r][row][column] = columns[column][row];
    }
  }
  // Registers 0 and 1 of the sum are the even and odd columns of the upper 8 rows.
  for (size_t half = 0; half < 2; ++half) {
    const float* const even = warp.lanes<const float>(registers[10 + 2 * half]);
    const float* const odd = warp.lanes<const float>(registers[11 + 2 * half]);
    Fragment sum;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sum[lane / 4][lane % 4 * 2] = even[lane];
      sum[lane / 4][lane % 4 * 2 + 1] = odd[lane];
    }
    for (size_t side = 0; side < 2; ++side) add_product(a[half + 2 * side], b[side], sum);
    float* const to_even = warp.lanes<float>(registers[2 * half]);
    float* const to_odd = warp.lanes<float>(registers[1 + 2 * half]);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      to_even[lane] = canonical(sum[lane / 4][lane % 4 * 2]);
      to_odd[lane] = canonical(sum[lane / 4][lane % 4 * 2 + 1]);
    }
  }
}

}  // namespace

void multiply_bf16(Warp& warp, const Instruction& instruction) {
  multiply<Bf16>(warp, instruction);
}

void multiply_f16(Warp& warp, const Instruction& instruction) {
  multiply<F16>(warp, instruction);
}

}  // namespace lockstep::ptx
