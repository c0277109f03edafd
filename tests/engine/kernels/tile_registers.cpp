// Compiled with flags of its own, for speed: nothing in here may be emitted for use outside this
// file but the function at its end.
#include "tests/engine/kernels/tile_registers.h"

#include <csignal>

#include "tests/engine/kernels/tile_product.h"

namespace lockstep {
namespace {

// The memory operand of LDTILECFG and STTILECFG.
struct Configuration {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Configuration) == 64);

constexpr TileFault undefined(const char* reason) {
  return {SIGILL, reason};
}
constexpr TileFault protection(const char* reason) {
  return {SIGSEGV, reason};
}

struct Registers {
  bool configured;
  size_t start_row;
  Tile tiles[kTileCount];
};

// Memory that is there from the thread's start and needs no construction: a signal handler uses it.
constinit thread_local Registers registers = {};

TileFault fault_of(const Configuration& from) {
  if (from.palette > 1) return protection("LDTILECFG of an unknown palette");
  for (const uint8_t byte : from.reserved) {
    if (byte != 0) return protection("LDTILECFG with reserved bytes that are not zero");
  }
  for (size_t tile = 0; tile < 16; ++tile) {
    const uint16_t row_bytes = from.row_bytes[tile];
    const uint8_t rows = from.rows[tile];
    if (tile >= kTileCount && (row_bytes != 0 || rows != 0)) {
      return protection("LDTILECFG of a tile that there is not");
    }
    if (row_bytes > kTileRowBytes) return protection("LDTILECFG of a row of more than 64 bytes");
    if (rows > kTileRows) return protection("LDTILECFG of more than 16 rows");
    if ((row_bytes == 0) != (rows == 0)) {
      return protection("LDTILECFG of a tile with rows or columns alone");
    }
  }
  return {};
}

TileFault load_configuration(const void* address) {
  Configuration from;
  __builtin_memcpy(&from, address, sizeof from);
  if (from.palette != 0) {
    if (const TileFault fault = fault_of(from); fault.signal != 0) return fault;
  }
  __builtin_memset(&registers, 0, sizeof registers);
  if (from.palette == 0) return {};
  registers.configured = true;
  registers.start_row = from.start_row;
  for (size_t tile = 0; tile < kTileCount; ++tile) {
    registers.tiles[tile].rows = from.rows[tile];
    registers.tiles[tile].row_bytes = from.row_bytes[tile];
  }
  return {};
}

void store_configuration(void* address) {
  Configuration to = {};
  to.palette = registers.configured ? 1 : 0;
  to.start_row = static_cast<uint8_t>(registers.start_row);
  for (size_t tile = 0; tile < kTileCount; ++tile) {
    to.rows[tile] = static_cast<uint8_t>(registers.tiles[tile].rows);
    to.row_bytes[tile] = static_cast<uint16_t>(registers.tiles[tile].row_bytes);
  }
  __builtin_memcpy(address, &to, sizeof to);
}

TileFault fault_of(const Tile& tile) {
  if (!registers.configured) return undefined("a tile is used while none is configured");
  if (tile.rows == 0) return undefined("a tile is used that the configuration leaves out");
  return {};
}

// The fault of an instruction that goes through a tile's rows.
TileFault fault_of_rows(const Tile& tile) {
  if (const TileFault fault = fault_of(tile); fault.signal != 0) return fault;
  if (tile.row_bytes % 4 != 0) return undefined("a tile's rows are no multiple of 4 bytes");
  if (registers.start_row >= tile.rows) return undefined("the start row is beyond the tile");
  return {};
}

TileFault zero(Tile& tile) {
  if (const TileFault fault = fault_of(tile); fault.signal != 0) return fault;
  __builtin_memset(tile.words, 0, sizeof tile.words);
  registers.start_row = 0;
  return {};
}

void* row_of(const TileInstruction& instruction, size_t row) {
  return reinterpret_cast<void*>(instruction.address + row * instruction.index);
}

TileFault load(const TileInstruction& instruction, Tile& tile) {
  if (const TileFault fault = fault_of_rows(tile); fault.signal != 0) return fault;
  if (registers.start_row == 0) __builtin_memset(tile.words, 0, sizeof tile.words);
  for (size_t row = registers.start_row; row < tile.rows; ++row) {
    __builtin_memcpy(tile.words[row], row_of(instruction, row), tile.row_bytes);
  }
  registers.start_row = 0;
  return {};
}

TileFault store(const TileInstruction& instruction, const Tile& tile) {
  if (const TileFault fault = fault_of_rows(tile); fault.signal != 0) return fault;
  for (size_t row = registers.start_row; row < tile.rows; ++row) {
    __builtin_memcpy(row_of(instruction, row), tile.words[row], tile.row_bytes);
  }
  registers.start_row = 0;
  return {};
}

TileFault fault_of_product(const Tile& sum, const Tile& first, const Tile& second) {
  if (&sum == &first || &sum == &second || &first == &second) {
    return undefined("a product names a tile twice");
  }
  for (const Tile* tile : {&sum, &first, &second}) {
    if (const TileFault fault = fault_of(*tile); fault.signal != 0) return fault;
    if (tile->row_bytes % 4 != 0) return undefined("a tile's rows are no multiple of 4 bytes");
  }
  if (sum.rows != first.rows || sum.row_bytes != second.row_bytes ||
      first.row_bytes / 4 != second.rows) {
    return undefined("a product's tiles do not fit one another");
  }
  return {};
}

template <typename Byte>
int32_t byte_of(uint32_t word, unsigned index) {
  return static_cast<Byte>(word >> (8 * index));
}

template <typename First, typename Second>
[[gnu::noinline]] void add_byte_product(Tile& sum, const Tile& first, const Tile& second) {
  for (size_t m = 0; m < sum.rows; ++m) {
    for (size_t k = 0; k < first.row_bytes / 4; ++k) {
      for (size_t n = 0; n < sum.row_bytes / 4; ++n) {
        uint32_t total = sum.words[m][n];  // which wraps around
        for (unsigned i = 0; i < 4; ++i) {
          total += static_cast<uint32_t>(byte_of<First>(first.words[m][k], i) *
                                         byte_of<Second>(second.words[k][n], i));
        }
        sum.words[m][n] = total;
      }
    }
  }
}

using Product = void (*)(Tile& sum, const Tile& first, const Tile& second);

TileFault multiply(const TileInstruction& instruction, Product product) {
  Tile& sum = registers.tiles[instruction.tile];
  const Tile& first = registers.tiles[instruction.first];
  const Tile& second = registers.tiles[instruction.second];
  if (const TileFault fault = fault_of_product(sum, first, second); fault.signal != 0) return fault;
  product(sum, first, second);
  registers.start_row = 0;
  return {};
}

}  // namespace

TileFault execute_tile_instruction(const TileInstruction& instruction) {
  void* const memory = row_of(instruction, 1);
  Tile& tile = registers.tiles[instruction.tile];
  switch (instruction.operation) {
    case TileOperation::kLoadConfiguration:
      return load_configuration(memory);
    case TileOperation::kStoreConfiguration:
      store_configuration(memory);
      return {};
    case TileOperation::kRelease:
      __builtin_memset(&registers, 0, sizeof registers);
      return {};
    case TileOperation::kZero:
      return zero(tile);
    case TileOperation::kLoad:
    case TileOperation::kLoadT1:
      return load(instruction, tile);
    case TileOperation::kStore:
      return store(instruction, tile);
    case TileOperation::kBf16Product:
      return multiply(instruction, add_bf16_product);
    case TileOperation::kSignedSignedProduct:
      return multiply(instruction, add_byte_product<int8_t, int8_t>);
    case TileOperation::kSignedUnsignedProduct:
      return multiply(instruction, add_byte_product<int8_t, uint8_t>);
    case TileOperation::kUnsignedSignedProduct:
      return multiply(instruction, add_byte_product<uint8_t, int8_t>);
    case TileOperation::kUnsignedUnsignedProduct:
      return multiply(instruction, add_byte_product<uint8_t, uint8_t>);
  }
  return undefined("an unknown instruction");
}

}  // namespace lockstep
