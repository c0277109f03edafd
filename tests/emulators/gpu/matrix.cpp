// mma.m16n8k16: a product of matrices whose elements lie spread over a warp's lanes. Which lane has
// which is said in PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". And
// wgmma.m64k16 with A in registers: a warp's 16 rows of it have the same lanes, and B lies in
// shared memory ("Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
#include <fmt/format.h>
#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/emulators/gpu/block_shared.h"
#include "tests/emulators/gpu/control.h"
#include "tests/emulators/gpu/rounding.h"
#include "tests/emulators/gpu/warp.h"

namespace lockstep::ptx {
namespace {

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

// The registers of a 16 x 8 sum, read and written.
struct SumPlaces {
  const uint32_t* from;  // null: it begins at 0
  const uint32_t* to;
};

// Products are exact in a float; every sum is rounded, in the order of the depth. (A GPU adds
// several products at once, with a few bits more or less.)
// a: the upper and the lower 8 rows of A's left half, then of its right half. b: the upper and the
// lower 8 rows of B.
void add_tile(Warp& warp, const std::array<Fragment, 4>& a, const std::array<Fragment, 2>& b,
              const SumPlaces& places) {
  // Registers 0 and 1 of the sum are the even and odd columns of the upper 8 rows.
  for (size_t half = 0; half < 2; ++half) {
    Fragment sum{};
    if (places.from != nullptr) {
      const float* const even = warp.lanes<const float>(places.from[2 * half]);
      const float* const odd = warp.lanes<const float>(places.from[1 + 2 * half]);
      for (size_t lane = 0; lane < kLanes; ++lane) {
        sum[lane / 4][lane % 4 * 2] = even[lane];
        sum[lane / 4][lane % 4 * 2 + 1] = odd[lane];
      }
    }
    for (size_t side = 0; side < 2; ++side) add_product(a[half + 2 * side], b[side], sum);
    float* const to_even = warp.lanes<float>(places.to[2 * half]);
    float* const to_odd = warp.lanes<float>(places.to[1 + 2 * half]);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      to_even[lane] = canonical(sum[lane / 4][lane % 4 * 2]);
      to_odd[lane] = canonical(sum[lane / 4][lane % 4 * 2 + 1]);
    }
  }
}

template <typename Type>
void unpack_a(Warp& warp, const uint32_t* registers, std::array<Fragment, 4>& a) {
  for (size_t r = 0; r < 4; ++r) Type::unpack(warp.lanes<const uint32_t>(registers[r]), a[r]);
}

void transpose(const Fragment& columns, Fragment& to) {
  for (size_t row = 0; row < 8; ++row) {
    for (size_t column = 0; column < 8; ++column) to[row][column] = columns[column][row];
  }
}

template <typename Type>
void multiply(Warp& warp, const Instruction& instruction) {
  if (!warp.gathered(kAllLanes, instruction)) return;
  const uint32_t* const registers = instruction.registers;
  alignas(32) std::array<Fragment, 4> a;
  alignas(32) std::array<Fragment, 2> b;
  unpack_a<Type>(warp, registers + 4, a);
  for (size_t r = 0; r < 2; ++r) {
    Fragment columns;  // which registers hold
    Type::unpack(warp.lanes<const uint32_t>(registers[8 + r]), columns);
    transpose(columns, b[r]);
  }
  add_tile(warp, a, b, {registers + 10, registers});
}

// A matrix in shared memory as its descriptor says: 8 rows of 16 bytes lie together, and these so
// far apart.
struct SharedMatrix {
  explicit SharedMatrix(uint64_t descriptor)
      : begin(part(descriptor, 0)),
        across(part(descriptor, 16)),
        down(part(descriptor, 32)),
        is_known(descriptor >> 46 == 0) {}
  static uint32_t part(uint64_t descriptor, uint32_t shift) {
    return static_cast<uint32_t>(descriptor >> shift & 0x3FFF) << 4;
  }

  uint32_t begin;
  uint32_t across;  // to the next 8 columns
  uint32_t down;    // to the next 8 rows
  bool is_known;    // not swizzled, nor based elsewhere
};

// Says what is wrong with reading 128 bytes of shared memory there; null: nothing.
const char* refuse_read(Warp& warp, size_t place) {
  constexpr size_t kBytes = 128;
  BlockShared& block = warp.block();
  if (place + kBytes > block.shared.size()) return "shared memory that the block has not";
  if (block.shared.has_promised(place, kBytes)) {
    return "shared memory that a cp.async has yet to write";
  }
  if (block.launch.refuses_unwritten_shared && !block.shared.is_written(place, kBytes)) {
    return "shared memory that nobody has written";
  }
  if (!block.touches) return nullptr;
  return block.touches->read(place, kBytes, warp.index()) == nullptr
             ? nullptr
             : "shared memory that another warp has written since the last barrier";
}

// The 8 x 8 elements at `place`, a row of which is a column of B.
bool read_shared(Warp& warp, const Instruction& instruction, uint32_t address, Fragment& to) {
  const size_t place = size_t{address} - kSharedBase;
  if (const char* const wrong = refuse_read(warp, place)) {
    warp.fail(instruction, 0, fmt::format("a product reads {}, at {:#x}", wrong, address));
    return false;
  }
  std::array<uint16_t, 64> elements;
  std::memcpy(elements.data(), warp.block().shared.at(place), sizeof(elements));
  for (size_t column = 0; column < 8; ++column) {
    for (size_t row = 0; row < 8; ++row) to[row][column] = from_bf16(elements[column * 8 + row]);
  }
  return true;
}

}  // namespace

void multiply_bf16(Warp& warp, const Instruction& instruction) {
  multiply<Bf16>(warp, instruction);
}

void multiply_f16(Warp& warp, const Instruction& instruction) {
  multiply<F16>(warp, instruction);
}

// At once: that a GPU may be later is not shown.
template <uint32_t kGroups, bool kAdds>
void multiply_group(Warp& warp, const Instruction& instruction) {
  if (!warp.gathered(kAllLanes, instruction)) return;
  const uint32_t* const registers = instruction.registers;
  const uint32_t* const from = registers + 4 * kGroups;
  const uint32_t* const a_registers = kAdds ? from + 4 * kGroups : from;
  const uint64_t* const descriptors = warp.lanes<const uint64_t>(a_registers[4]);
  const SharedMatrix matrix(descriptors[0]);
  for (uint32_t lane = 1; lane < kLanes; ++lane) {
    if (descriptors[lane] != descriptors[0]) {
      return warp.fail(instruction, lane, "its descriptor is not that of the other lanes");
    }
  }
  const Size3 threads = warp.block().launch.block;
  if (threads.x * threads.y * threads.z % (4 * kLanes) != 0) {
    return warp.fail(instruction, 0, "the block is not of groups of four warps");
  }
  if (!matrix.is_known) {
    return warp.fail(instruction, 0, "only matrices that are not swizzled are known");
  }
  alignas(32) std::array<Fragment, 4> a;
  alignas(32) std::array<Fragment, 2> b;
  unpack_a<Bf16>(warp, a_registers, a);
  for (uint32_t group = 0; group < kGroups; ++group) {
    for (uint32_t side = 0; side < 2; ++side) {
      const uint32_t at = matrix.begin + side * matrix.across + group * matrix.down;
      if (!read_shared(warp, instruction, at, b[side])) return;
    }
    add_tile(warp, a, b, {kAdds ? from + 4 * group : nullptr, registers + 4 * group});
  }
}
template void multiply_group<2, false>(Warp&, const Instruction&);
template void multiply_group<2, true>(Warp&, const Instruction&);
template void multiply_group<4, false>(Warp&, const Instruction&);
template void multiply_group<4, true>(Warp&, const Instruction&);
template void multiply_group<8, false>(Warp&, const Instruction&);
template void multiply_group<8, true>(Warp&, const Instruction&);

void meet_for_products(Warp& warp, const Instruction& instruction) {
  warp.gathered(kAllLanes, instruction);
}

}  // namespace lockstep::ptx
