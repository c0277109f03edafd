// The text of a PTX module as functions and statements: nothing is looked up or checked yet but the
// grammar. All string_views point into the text.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::ptx {

// The largest of any instruction: of its operands, and of a vector operand's elements. Few vectors
// have more than the usual ones.
inline constexpr size_t kOperandsMost = 7;
inline constexpr size_t kElementsMost = 64;
inline constexpr size_t kElementsUsual = 4;

// A value in the text: a name (of a register or a variable), or a number's bits.
struct Word {
  enum class Kind : uint8_t { kNone, kName, kInteger, kFloat32, kFloat64 } kind = Kind::kNone;
  std::string_view name{};
  uint64_t bits = 0;
};

struct Operand {
  enum class Kind : uint8_t {
    kWord,     // a
    kVector,   // {a, b, ..}
    kPair,     // a|b
    kAddress,  // [a] or [a+offset]
  } kind = Kind::kWord;
  uint8_t count = 1;
  std::array<Word, kElementsUsual> words{};
  std::vector<Word> others{};  // the elements behind them
  int64_t offset = 0;

  const Word& element(size_t index) const {
    return index < kElementsUsual ? words[index] : others[index - kElementsUsual];
  }
};

// `.space .align n .type name[count] = {..}`: a variable or a parameter.
struct Variable {
  std::string_view name{};
  std::string_view space{};  // "param", "shared", "local", "global", "const"
  bool is_extern = false;
  uint32_t alignment = 1;
  uint32_t bytes = 0;
  std::vector<uint8_t> values{};  // the first of its bytes; the rest are 0
};

// `.reg .type %r<count>` or `.reg .type %name`
struct Registers {
  std::string_view name{};  // with a count: what stands before the number
  uint32_t count = 0;       // 0: a single one
  uint32_t lane_bytes = 0;
};

struct Statement {
  enum class Kind : uint8_t {
    kInstruction,
    kLabel,       // name
    kScopeBegin,  // names declared from here to its end hide those outside
    kScopeEnd,
    kRegisters,  // index into Function::registers
    kVariable,   // index into Function::variables
  } kind = Kind::kInstruction;
  bool guard_negated = false;
  uint8_t operand_count = 0;
  uint32_t offset = 0;  // in the text
  uint32_t index = 0;
  std::string_view name{};   // the instruction with all its modifiers
  std::string_view guard{};  // the predicate it depends on; empty: none
  std::array<Operand, kOperandsMost> operands{};
};

struct Function {
  std::string_view name{};
  bool is_entry = false;
  std::vector<Variable> results{};
  std::vector<Variable> parameters{};
  std::vector<Variable> variables{};
  std::vector<Registers> registers{};
  std::vector<Statement> statements{};
  uint32_t threads_max = 1024;
  uint32_t blocks_at_once = 1;  // that a multiprocessor is to have space for
};

struct Text {
  std::string_view isa_version{};
  std::string_view target{};
  std::vector<Variable> variables{};  // outside functions
  std::vector<Function> functions{};  // with a body
};

// The error names the line.
std::expected<Text, std::string> read_text(std::string_view text);

// "line 12: `add.s32 %r1, %r2, %r3` (rows.inl.h:40)" for the statement that begins there; without
// what is in parentheses where the text does not say from which source it is (-lineinfo).
std::string place_in_text(std::string_view text, size_t offset);

// Bytes of a value of a type such as "u32" or "b8"; a predicate's are 1; 0: no type.
uint32_t type_bytes(std::string_view type);

}  // namespace lockstep::ptx
