// Reads a call whose name and arguments stand between marks, as a row of CallSyntax says: CallForm
// kJson and kPairs. The arguments come out as a JSON object, as they come.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/common/call_reader.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {

class MarkedCallReader final : public CallReader {
 public:
  // From the head on. The syntax outlives this.
  explicit MarkedCallReader(const CallSyntax& syntax);
  // From the arguments on: the name is known, and told at once.
  MarkedCallReader(const CallSyntax& syntax, std::string name);

  size_t push(std::string_view text) override;
  State state() const override { return state_; }
  const std::optional<std::string>& name() const override { return name_; }
  void set_parameters(const ParameterKinds& kinds) override { kinds_ = &kinds; }
  std::string take_arguments() override;
  const std::string& raw() const override { return raw_; }

 private:
  enum class Place {
    kHead,
    kName,
    kNameEnd,  // the mark behind the name, or the one before a number
    kNumber,
    kJsonStart,
    kJson,
    kPairOrEnd,
    kKey,
    kValueOpen,
    kValue,
    kCallEnd,
  };

  void take(char letter);
  void take_name(char letter);
  void take_name_end(char letter);
  void take_number(char letter);
  void take_json_start(char letter);
  void take_json(char letter);
  bool pass_string(char letter);  // of JSON: whether the letter belongs to a string
  void take_pair_or_end(char letter);
  void take_key(char letter);
  void take_value(char letter);

  // Adds the letter, but for white space before a mark, to window_ and says which of the marks it
  // holds now: 0 for the first one. None while it may become one; where it cannot, the call is
  // broken.
  std::optional<size_t> match(char letter, std::initializer_list<std::string_view> marks);
  void announce();  // the name
  void begin_value(bool is_json);
  void tell_raw(bool ends);  // what is sure of a text in window_
  void finish();

  const CallSyntax* syntax_;
  State state_ = State::kOpen;
  Place place_ = Place::kHead;
  std::string raw_;
  std::string window_;  // what may become a mark; of a value, what has not been told yet
  std::string read_name_;
  std::optional<std::string> name_;
  const ParameterKinds* kinds_ = nullptr;
  std::string arguments_;  // all of them
  size_t taken_ = 0;       // of arguments_
  // For JSON:
  size_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  // For pairs:
  std::string key_;
  ParameterKind kind_;
  bool at_value_start_ = false;
  bool is_json_ = false;  // the value begins as a JSON string or container does
};

}  // namespace lockstep
