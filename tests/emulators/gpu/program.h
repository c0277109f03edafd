// A kernel as the interpreter runs it: instructions whose names and operands have been looked up.
//
// A register holds the values of a warp's 32 lanes one after the other, and is meant by where it
// lies in the warp's register file, in bytes. Numbers and what is the same for a whole launch lie
// in registers as well, so an instruction knows only registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulators/gpu/module.h"

namespace lockstep::ptx {

inline constexpr uint32_t kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;  // a bit for each

// The first addresses of shared and local memory. On GPUs of compute capability 9.0 the first KiB
// of shared memory is the system's; here it is not used, so that an address of 0 is refused.
inline constexpr uint32_t kSharedBase = 1024;
inline constexpr uint32_t kLocalBase = 1024;

class Warp;
struct Instruction;
using Handler = void (*)(Warp& warp, const Instruction& instruction);

struct Instruction {
  Handler run = nullptr;
  // Registers: those written, then those read. Points into Program::registers.
  const uint32_t* registers = nullptr;
  // An address' offset, a branch's target, a selector: what the handler says.
  uint64_t immediate = 0;
  uint32_t offset = 0;  // of the statement in the module's text
  uint8_t written = 0;  // how many registers
  uint8_t read = 0;
  // Not 0: all that it does is to write one register of so many bytes a lane, each lane from its
  // own operands. Run for all lanes and undone for those that do not take part.
  uint8_t pure_lane_bytes = 0;
};

enum class Special : uint8_t {
  kThreadX,
  kThreadY,
  kThreadZ,
  kLane,
  kThreadsX,
  kThreadsY,
  kThreadsZ,
  kBlockX,
  kBlockY,
  kBlockZ,
  kBlocksX,
  kBlocksY,
  kBlocksZ,
};

struct SpecialRegister {
  Special special = Special::kThreadX;
  uint32_t place = 0;
};

struct Program {
  std::string name;
  std::shared_ptr<const std::string> text;  // of the module
  // Variables of the module in global memory, which the kernel only reads.
  std::shared_ptr<const std::vector<std::byte>> variables;

  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t shared_bytes = 0;
  uint32_t local_bytes = 0;
  uint32_t threads_max = 1024;
  uint32_t blocks_at_once = 1;

  std::vector<Instruction> instructions;
  std::vector<uint32_t> registers;
  std::vector<SpecialRegister> specials;
  // The register file begins with these bytes: numbers, and space for the special registers.
  std::vector<std::byte> constants;
  uint32_t register_file_bytes = 0;
  std::vector<uint32_t> predicates;  // behind the constants, where places hold 0s and 1s
  // Places of registers that may be read before they are written, and their bytes.
  std::vector<std::pair<uint32_t, uint32_t>> read_first;
};

}  // namespace lockstep::ptx
