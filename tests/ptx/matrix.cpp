// mma.m16n8k16: a product of matrices whose elements lie spread over a warp's lanes. Which lane has
// which is said in PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/ptx/control.h"
#include "tests/ptx/rounding.h"
#include "tests/ptx/warp.h"

namespace lockstep::ptx {
namespace {

constexpr uint32_t kRows = 16;    // of A and the sum
constexpr uint32_t kColumns = 8;  // of B and the sum
constexpr uint32_t kDepth = 16;   // columns of A, rows of B
constexpr uint32_t kAllLanes = 0xffffffff;

// A register has the elements of two columns of A (rows of B): the lower half the left (upper) one.
// In groups of 4 lanes: a row of A, a column of B.
struct Place {
  explicit Place(uint32_t lane) : group(lane / 4), pair(lane % 4 * 2) {}
  uint32_t group;
  uint32_t pair;
};

// Products are exact in a float; every sum is rounded, in the order of the depth. (A GPU adds
// several products at once, with a few bits more or less.)
template <float (*kFloat)(uint16_t)>
void multiply(Warp& warp, const Instruction& instruction) {
  if (!warp.gathered(kAllLanes, instruction)) return;
  const uint32_t* const registers = instruction.registers;
  alignas(64) float a[kRows][kDepth];
  alignas(64) float b[kDepth][kColumns];
  alignas(64) float sum[kRows][kColumns];
  for (uint32_t r = 0; r < 4; ++r) {
    const uint32_t* const from = warp.lanes<const uint32_t>(registers[4 + r]);
    const float* const from_sum = warp.lanes<const float>(registers[10 + r]);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const Place place(lane);
      // Registers 0 and 2 are of the upper 8 rows of A, 2 and 3 of the right 8 columns.
      float* const elements = &a[place.group + (r % 2) * 8][place.pair + (r / 2) * 8];
      elements[0] = kFloat(static_cast<uint16_t>(from[lane]));
      elements[1] = kFloat(static_cast<uint16_t>(from[lane] >> 16));
      sum[place.group + (r / 2) * 8][place.pair + r % 2] = from_sum[lane];
    }
  }
  for (uint32_t r = 0; r < 2; ++r) {
    const uint32_t* const from = warp.lanes<const uint32_t>(registers[8 + r]);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const Place place(lane);
      b[place.pair + r * 8][place.group] = kFloat(static_cast<uint16_t>(from[lane]));
      b[place.pair + r * 8 + 1][place.group] = kFloat(static_cast<uint16_t>(from[lane] >> 16));
    }
  }
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t k = 0; k < kDepth; ++k) {
      for (uint32_t column = 0; column < kColumns; ++column) {
        sum[row][column] = std::fma(a[row][k], b[k][column], sum[row][column]);
      }
    }
  }
  for (uint32_t r = 0; r < 4; ++r) {
    float* const to = warp.lanes<float>(registers[r]);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const Place place(lane);
      to[lane] = canonical(sum[place.group + (r / 2) * 8][place.pair + r % 2]);
    }
  }
}

}  // namespace

void multiply_bf16(Warp& warp, const Instruction& instruction) {
  multiply<from_bf16>(warp, instruction);
}

void multiply_f16(Warp& warp, const Instruction& instruction) {
  multiply<from_f16>(warp, instruction);
}

}  // namespace lockstep::ptx
