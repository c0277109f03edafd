#include "tests/engine/kernels/tile_instruction.h"

#include <cstring>

namespace lockstep {

namespace {

// The field of a VEX prefix of three bytes: no prefix, or the one that it stands for.
enum class Prefix : uint8_t { kNone = 0, k66 = 1, kF3 = 2, kF2 = 3 };

// A VEX prefix of three bytes (C4), the opcode behind it, and its ModRM byte.
struct Head {
  explicit Head(const uint8_t* code)
      : extend_register((~code[1] & 0x80U) != 0),
        extend_index((~code[1] & 0x40U) != 0),
        extend_base((~code[1] & 0x20U) != 0),
        third_operand(static_cast<uint8_t>(~code[2] >> 3U & 15U)),
        prefix(static_cast<Prefix>(code[2] & 3U)),
        opcode(code[3]),
        mode(static_cast<uint8_t>(code[4] >> 6U)),
        reg(static_cast<uint8_t>(code[4] >> 3U & 7U)),
        rm(static_cast<uint8_t>(code[4] & 7U)) {}

  bool has_memory() const { return mode != 3; }

  bool extend_register;
  bool extend_index;
  bool extend_base;
  uint8_t third_operand;
  Prefix prefix;
  uint8_t opcode;
  uint8_t mode;
  uint8_t reg;
  uint8_t rm;
};
constexpr size_t kHeadBytes = 5;

// Opcode map 0F38, W0, 128 bits.
bool is_in_tile_map(const uint8_t* code) {
  return code[0] == 0xC4 && (code[1] & 0x1FU) == 2 && (code[2] & 0x84U) == 0;
}

std::optional<TileOperation> configuration_operation(const Head& head) {
  if (head.has_memory()) {
    if (head.reg != 0) return {};
    if (head.prefix == Prefix::kNone) return TileOperation::kLoadConfiguration;
    if (head.prefix == Prefix::k66) return TileOperation::kStoreConfiguration;
    return {};
  }
  if (head.rm != 0) return {};
  if (head.prefix == Prefix::kNone && head.reg == 0) return TileOperation::kRelease;
  if (head.prefix == Prefix::kF2) return TileOperation::kZero;
  return {};
}

// Their memory must have a SIB byte.
std::optional<TileOperation> move_operation(const Head& head) {
  if (!head.has_memory() || head.rm != 4) return {};
  if (head.prefix == Prefix::kF2) return TileOperation::kLoad;
  if (head.prefix == Prefix::k66) return TileOperation::kLoadT1;
  if (head.prefix == Prefix::kF3) return TileOperation::kStore;
  return {};
}

std::optional<TileOperation> byte_product(Prefix prefix) {
  switch (prefix) {
    case Prefix::kF2:
      return TileOperation::kSignedSignedProduct;
    case Prefix::kF3:
      return TileOperation::kSignedUnsignedProduct;
    case Prefix::k66:
      return TileOperation::kUnsignedSignedProduct;
    case Prefix::kNone:
      return TileOperation::kUnsignedUnsignedProduct;
  }
  return {};
}

// Tiles have three bits.
std::optional<TileOperation> product_operation(const Head& head) {
  if (head.has_memory() || head.extend_base || head.third_operand > 7) return {};
  if (head.opcode == 0x5E) return byte_product(head.prefix);
  if (head.prefix == Prefix::kF3) return TileOperation::kBf16Product;
  return {};
}

std::optional<TileOperation> operation_of(const Head& head) {
  if (head.extend_register) return {};
  if (head.opcode == 0x5C || head.opcode == 0x5E) return product_operation(head);
  if (head.third_operand != 0) return {};
  if (head.opcode == 0x49) return configuration_operation(head);
  if (head.opcode == 0x4B) return move_operation(head);
  return {};
}

template <typename Number>
uint64_t sign_extended(const uint8_t* from) {
  Number number = 0;
  std::memcpy(&number, from, sizeof number);
  return static_cast<uint64_t>(int64_t{number});
}

// Adds the memory operand of an instruction at `code`; `tail` is what follows its ModRM byte.
void read_memory(const uint8_t* code, const Head& head, const GeneralRegisters& registers,
                 TileInstruction& instruction) {
  const uint8_t* tail = code + kHeadBytes;
  size_t base = head.rm;
  if (head.rm == 4) {
    const uint8_t sib = *tail++;
    base = sib & 7U;
    const size_t index = (sib >> 3U & 7U) + (head.extend_index ? 8U : 0U);
    if (index != 4) instruction.index = registers[index] << (sib >> 6U);
  }
  const bool no_base = head.mode == 0 && base == 5;
  if (!no_base) instruction.address = registers[base + (head.extend_base ? 8U : 0U)];
  if (head.mode == 1) {
    instruction.address += sign_extended<int8_t>(tail);
    tail += sizeof(int8_t);
  } else if (head.mode == 2 || no_base) {
    instruction.address += sign_extended<int32_t>(tail);
    tail += sizeof(int32_t);
  }
  instruction.bytes = static_cast<uint8_t>(tail - code);
  // Relative to the instruction behind it.
  if (no_base && head.rm == 5) instruction.address += reinterpret_cast<uint64_t>(tail);
}

}  // namespace

std::optional<TileInstruction> decode_tile_instruction(const uint8_t* code,
                                                       const GeneralRegisters& registers) {
  if (!is_in_tile_map(code)) return {};
  const Head head(code);
  const std::optional<TileOperation> operation = operation_of(head);
  if (!operation) return {};
  TileInstruction instruction = {.operation = *operation,
                                 .bytes = kHeadBytes,
                                 .tile = head.reg,
                                 .first = head.rm,
                                 .second = head.third_operand,
                                 .address = 0,
                                 .index = 0};
  if (head.has_memory()) read_memory(code, head, registers, instruction);
  return instruction;
}

}  // namespace lockstep
