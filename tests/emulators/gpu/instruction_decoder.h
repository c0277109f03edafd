// Decodes what is no branch, call or end: one statement, by its name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "tests/emulators/gpu/access.h"
#include "tests/emulators/gpu/draft.h"
#include "tests/emulators/gpu/names.h"
#include "tests/emulators/gpu/operations.h"
#include "tests/emulators/gpu/syntax.h"

namespace lockstep::ptx {

// The error of a statement. Thrown while a module is decoded, caught by decode().
struct WrongStatement : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class InstructionDecoder {
 public:
  explicit InstructionDecoder(Draft& draft) : draft_(draft) {}

  // Adds its instructions to the draft. Throws WrongStatement.
  void decode(const Names& names, const Statement& statement);

  // The register of a name or number that is read, of so many bytes a lane (0: of any).
  uint32_t source(const Names& names, const Word& word, uint32_t lane_bytes);
  // Adds an operation of the table.
  void compute(std::string_view name, uint32_t result, std::span<const uint32_t> operands);

 private:
  void computation(const Operation& operation);
  void conversion();
  void carry();
  void move();
  void pack(const Operand& from, std::string_view type);
  void unpack(const Operand& to, std::string_view type);
  bool exchange();
  bool matrix_product();
  bool group_product();
  bool asynchronous();
  bool atomic();
  bool barrier();
  bool access();
  void parameter(const AccessName& name, const Place& place);

  const Word& word(size_t operand) const { return statement_->operands[operand].words[0]; }
  std::string_view name() const { return statement_->name; }
  void want_operands(size_t count) const;
  uint64_t number(size_t operand) const;  // that has to be one
  uint32_t source(const Word& word, uint32_t lane_bytes) {
    return source(*names_, word, lane_bytes);
  }
  uint32_t target(const Word& word, uint32_t lane_bytes) const;
  // The register with an address' base (a constant for a variable's), and the offset.
  std::pair<uint32_t, uint64_t> address(const Operand& operand, std::string_view space,
                                        uint32_t lane_bytes);
  Instruction& add(Handler run, std::span<const uint32_t> written, std::span<const uint32_t> read) {
    return draft_.add(run, statement_->offset, written, read);
  }
  Instruction& add(Handler run, std::initializer_list<uint32_t> written,
                   std::initializer_list<uint32_t> read) {
    return add(run, std::span(written.begin(), written.size()),
               std::span(read.begin(), read.size()));
  }

  Draft& draft_;
  const Names* names_ = nullptr;
  const Statement* statement_ = nullptr;
  std::optional<uint32_t> carry_;  // the flag that the last instruction of a chain left
};

}  // namespace lockstep::ptx
