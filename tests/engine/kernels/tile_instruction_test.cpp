// Tile instructions are read as the assembler writes them, and nothing else is taken for one.
#include "tests/engine/kernels/tile_instruction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

asm(R"(
  .pushsection .rodata
lockstep_tile_moves:
  ldtilecfg (%rax)
  ldtilecfg (%rsp)
  ldtilecfg (%rbp)
  ldtilecfg (%r12)
  ldtilecfg (%r13)
  ldtilecfg -8(%rdi)
  ldtilecfg 0x12345678(%r15)
  ldtilecfg -0x12345678(%rbx,%rcx,4)
  ldtilecfg 0x1000(,%r12,8)
  ldtilecfg 0x1234
  ldtilecfg 0x40(%rip)
  ldtilecfg -0x40(%rip)
  sttilecfg (%rdx)
  sttilecfg 127(%rbp,%r14,2)
  sttilecfg 128(%r8)
  tilerelease
  tilezero %tmm0
  tilezero %tmm7
  tileloadd (%rdi,%rsi,1), %tmm6
  tileloadd (%rdi), %tmm1
  tileloadd (%rbp,%rax,2), %tmm2
  tileloadd 64(%r13,%r15,8), %tmm7
  tileloadd -0x10000(%r12,%r12,4), %tmm3
  tileloadd 0x1000(,%rbx,8), %tmm4
  tileloaddt1 -1(%rsp,%rdx,1), %tmm5
  tilestored %tmm0, (%r8,%r9,1)
  tilestored %tmm7, 0x7FFFFFFF(%rax,%r13,4)
lockstep_tile_products:
  tdpbf16ps %tmm3, %tmm2, %tmm1
  tdpbf16ps %tmm0, %tmm6, %tmm7
  tdpbssd %tmm3, %tmm2, %tmm1
  tdpbsud %tmm4, %tmm3, %tmm2
  tdpbusd %tmm5, %tmm4, %tmm3
  tdpbuud %tmm7, %tmm0, %tmm6
lockstep_tile_end:
  .balign 8
lockstep_tile_moves_bytes: .quad lockstep_tile_products - lockstep_tile_moves
lockstep_tile_products_bytes: .quad lockstep_tile_end - lockstep_tile_products
  .popsection
)");
extern "C" {
extern const uint8_t lockstep_tile_moves[];
extern const uint8_t lockstep_tile_products[];
extern const int64_t lockstep_tile_moves_bytes;
extern const int64_t lockstep_tile_products_bytes;
}

namespace lockstep {
namespace {

const uint8_t* const moves = lockstep_tile_moves;
const uint8_t* const products = lockstep_tile_products;

constexpr uint64_t kRax = 0x1000'0000'0000;
constexpr uint64_t kRcx = 0x1000'0000'0100;
constexpr uint64_t kRdx = 0x1000'0000'0200;
constexpr uint64_t kRbx = 0x1000'0000'0300;
constexpr uint64_t kRsp = 0x1000'0000'0400;
constexpr uint64_t kRbp = 0x1000'0000'0500;
constexpr uint64_t kRsi = 0x1000'0000'0600;
constexpr uint64_t kRdi = 0x1000'0000'0700;
constexpr uint64_t kR8 = 0x1000'0000'0800;
constexpr uint64_t kR9 = 0x1000'0000'0900;
constexpr uint64_t kR12 = 0x1000'0000'0C00;
constexpr uint64_t kR13 = 0x1000'0000'0D00;
constexpr uint64_t kR14 = 0x1000'0000'0E00;
constexpr uint64_t kR15 = 0x1000'0000'0F00;

GeneralRegisters registers() {
  GeneralRegisters registers;
  for (uint64_t i = 0; i < registers.size(); ++i) registers[i] = kRax + 0x100 * i;
  return registers;
}

using enum TileOperation;

struct Memory {
  TileOperation operation;
  uint8_t tile;
  uint64_t address;
  uint64_t index;
};

TEST(TileInstruction, is_read_with_every_form_of_memory) {
  const Memory expected[] = {
      {kLoadConfiguration, 0, kRax, 0},
      {kLoadConfiguration, 0, kRsp, 0},
      {kLoadConfiguration, 0, kRbp, 0},
      {kLoadConfiguration, 0, kR12, 0},
      {kLoadConfiguration, 0, kR13, 0},
      {kLoadConfiguration, 0, kRdi - 8, 0},
      {kLoadConfiguration, 0, kR15 + 0x12345678, 0},
      {kLoadConfiguration, 0, kRbx - 0x12345678, 4 * kRcx},
      {kLoadConfiguration, 0, 0x1000, 8 * kR12},
      {kLoadConfiguration, 0, 0x1234, 0},
      {kLoadConfiguration, 0, 0x40, 0},
      {kLoadConfiguration, 0, uint64_t{} - 0x40, 0},
      {kStoreConfiguration, 0, kRdx, 0},
      {kStoreConfiguration, 0, kRbp + 127, 2 * kR14},
      {kStoreConfiguration, 0, kR8 + 128, 0},
      {kRelease, 0, 0, 0},
      {kZero, 0, 0, 0},
      {kZero, 7, 0, 0},
      {kLoad, 6, kRdi, kRsi},
      {kLoad, 1, kRdi, 0},
      {kLoad, 2, kRbp, 2 * kRax},
      {kLoad, 7, kR13 + 64, 8 * kR15},
      {kLoad, 3, kR12 - 0x10000, 4 * kR12},
      {kLoad, 4, 0x1000, 8 * kRbx},
      {kLoadT1, 5, kRsp - 1, kRdx},
      {kStore, 0, kR8, kR9},
      {kStore, 7, kRax + 0x7FFFFFFF, 4 * kR13},
  };
  const uint8_t* at = moves;
  for (const Memory& wanted : expected) {
    SCOPED_TRACE(&wanted - expected);
    const auto read = decode_tile_instruction(at, registers());
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->operation, wanted.operation);
    EXPECT_EQ(read->tile, wanted.tile);
    at += read->bytes;
    // Relative to the next instruction.
    const bool relative = wanted.address == 0x40 || wanted.address == uint64_t{} - 0x40;
    EXPECT_EQ(read->address, wanted.address + (relative ? reinterpret_cast<uint64_t>(at) : 0));
    EXPECT_EQ(read->index, wanted.index);
  }
  EXPECT_EQ(at - moves, lockstep_tile_moves_bytes);
}

// Its operands in the order of the manual, which is the reverse of the assembler's.
TEST(TileInstruction, is_read_with_the_tiles_of_a_product) {
  struct Product {
    TileOperation operation;
    uint8_t sum, first, second;
  };
  const Product expected[] = {
      {kBf16Product, 1, 2, 3},           {kBf16Product, 7, 6, 0},
      {kSignedSignedProduct, 1, 2, 3},   {kSignedUnsignedProduct, 2, 3, 4},
      {kUnsignedSignedProduct, 3, 4, 5}, {kUnsignedUnsignedProduct, 6, 0, 7},
  };
  const uint8_t* at = products;
  for (const Product& wanted : expected) {
    SCOPED_TRACE(&wanted - expected);
    const auto read = decode_tile_instruction(at, registers());
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->operation, wanted.operation);
    EXPECT_EQ(read->tile, wanted.sum);
    EXPECT_EQ(read->first, wanted.first);
    EXPECT_EQ(read->second, wanted.second);
    at += read->bytes;
  }
  EXPECT_EQ(at - products, lockstep_tile_products_bytes);
}

using Bytes = std::vector<uint8_t>;

// One of each kind of encoding.
const Bytes kReleaseCode = {0xC4, 0xE2, 0x78, 0x49, 0xC0};
const Bytes kZeroCode = {0xC4, 0xE2, 0x7B, 0x49, 0xC8};
const Bytes kLoadCode = {0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x37};
const Bytes kConfigureCode = {0xC4, 0xE2, 0x78, 0x49, 0x07};
const Bytes kProductCode = {0xC4, 0xE2, 0x62, 0x5C, 0xCA};

bool is_tile_instruction(const Bytes& code) {
  return decode_tile_instruction(code.data(), registers()).has_value();
}

TEST(TileInstruction, is_nothing_else) {
  for (const Bytes& code : {kReleaseCode, kZeroCode, kLoadCode, kConfigureCode, kProductCode}) {
    ASSERT_TRUE(is_tile_instruction(code));
    const auto changed = [&](size_t byte, unsigned bits) {
      Bytes other = code;
      other[byte] = static_cast<uint8_t>(other[byte] ^ bits);
      return is_tile_instruction(other);
    };
    EXPECT_FALSE(changed(0, 0x01)) << "not VEX";
    EXPECT_FALSE(changed(1, 0x80)) << "tile 8";
    EXPECT_FALSE(changed(1, 0x01)) << "another map";
    EXPECT_FALSE(changed(2, 0x80)) << "W1";
    EXPECT_FALSE(changed(2, 0x04)) << "256 bits";
    EXPECT_FALSE(changed(2, 0x40)) << "a third operand where there is none, or tile 8";
    EXPECT_FALSE(changed(3, 0x80)) << "another opcode";
  }
  Bytes other = kProductCode;
  other[1] ^= 0x20U;
  EXPECT_FALSE(is_tile_instruction(other)) << "tile 8";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x63, 0x5C, 0xCA})) << "TDPFP16PS";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x62, 0x5C, 0x0A})) << "a product with memory";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x7B, 0x4B, 0xCF})) << "a load of a register";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x7B, 0x4B, 0x0F})) << "a load without SIB";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x78, 0x4B, 0x0C, 0x37})) << "no prefix";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x78, 0x49, 0x0F})) << "ModRM.reg 1";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x7B, 0x49, 0xC9})) << "ModRM.rm 1";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x7B, 0x49, 0x07})) << "F2, with memory";
  EXPECT_FALSE(is_tile_instruction({0xC4, 0xE2, 0x71, 0x50, 0xC2})) << "VPDPBUSD";
  EXPECT_FALSE(is_tile_instruction({0x0F, 0x0B})) << "UD2";
}

}  // namespace
}  // namespace lockstep
