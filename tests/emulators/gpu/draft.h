// A kernel while it is decoded: its instructions work on any number of registers, each of which has
// a number and its own width. finish() finds places for them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tests/emulators/gpu/program.h"

namespace lockstep::ptx {

struct Draft {
  enum class Kind : uint8_t { kPlain, kConstant, kSpecial };
  struct Register {
    uint8_t lane_bytes = 0;
    Kind kind = Kind::kPlain;
    Special special = Special::kThreadX;
    uint64_t bits = 0;  // of a constant
  };

  std::vector<Register> registers;
  std::vector<Instruction> instructions;  // whose registers are found in:
  std::vector<uint32_t> first_operand;    // for each, in `operands`
  std::vector<uint32_t> operands;
  // Instructions after which control may go elsewhere than to the next one.
  std::vector<std::pair<uint32_t, uint32_t>> branches;  // from, to
  std::vector<uint32_t> ends;                           // no other follows

  uint32_t add_register(uint32_t lane_bytes);
  uint32_t constant(uint64_t bits, uint32_t lane_bytes);
  uint32_t special(Special which);
  Instruction& add(Handler run, uint32_t offset, std::span<const uint32_t> written,
                   std::span<const uint32_t> read);

  // Puts instructions, constants and the size of the register file into the program. Registers that
  // are never needed at the same time share a place.
  void finish(Program& program) const;

 private:
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constants_;
  std::map<Special, uint32_t> specials_;
};

}  // namespace lockstep::ptx
