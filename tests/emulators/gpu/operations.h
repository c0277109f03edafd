// The table of the instructions that compute: each by its full name, such as "add.s32" or
// "fma.rn.f32", with what runs it and how wide its operands are. Those that touch memory, other
// lanes or the flow of control are looked up by the decoder (decoder.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tests/emulators/gpu/program.h"

namespace lockstep::ptx {

struct Operation {
  Handler run = nullptr;
  // Bytes a lane of what is written, then of each operand that is read.
  uint8_t result = 0;
  std::array<uint8_t, 4> operands{};  // up to the first 0
};

class Operations {
 public:
  // Null: none of that name.
  static const Operation* find(std::string_view name);

  void add(std::string name, Operation operation) { table_.emplace(std::move(name), operation); }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, Operation, Hash, std::equal_to<>> table_;
};

// One file each.
void add_integer_operations(Operations& table);
void add_float_operations(Operations& table);
void add_conversions(Operations& table);
void add_comparisons(Operations& table);
void add_moves(Operations& table);

}  // namespace lockstep::ptx
