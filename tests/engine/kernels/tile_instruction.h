// AMX's tile instructions as they lie in memory: VEX-encoded, with their operands.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep {

enum class TileOperation : uint8_t {
  kLoadConfiguration,
  kStoreConfiguration,
  kRelease,
  kZero,
  kLoad,
  kLoadT1,
  kStore,
  kBf16Product,
  // Products of bytes: the first operand's signed or not, then the second's.
  kSignedSignedProduct,
  kSignedUnsignedProduct,
  kUnsignedSignedProduct,
  kUnsignedUnsignedProduct,
};
inline constexpr size_t kTileOperationCount = 12;

struct TileInstruction {
  TileOperation operation;
  uint8_t bytes;   // its length
  uint8_t tile;    // that it writes, or stores
  uint8_t first;   // of a product: rows ...
  uint8_t second;  // ... times this
  // Its memory: a configuration lies at address + index, row r of a tile at address + r * index.
  uint64_t address;
  uint64_t index;  // register << scale
};

// rax rcx rdx rbx rsp rbp rsi rdi r8 ... r15
using GeneralRegisters = std::array<uint64_t, 16>;

// None for anything but a tile instruction of 64-bit mode, and for one that names a tile that there
// is not. Reads no byte beyond the instruction's; segment overrides and 32-bit addresses are not
// known. May be called by a signal handler.
std::optional<TileInstruction> decode_tile_instruction(const uint8_t* code,
                                                       const GeneralRegisters& registers);

}  // namespace lockstep
