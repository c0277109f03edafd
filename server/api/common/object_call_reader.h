// Reads a call that is an object: {"name": …, "arguments": {…}}, by the names of a row of
// CallSyntax. Of a member that is there twice the first one counts, within the arguments as well:
// it has been told when the second one comes. An object that names two functions is none.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/api/common/call_reader.h"
#include "server/api/common/literal_reader.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {

class ObjectCallReader final : public CallReader {
 public:
  ObjectCallReader() : ObjectCallReader(call_syntaxes().front()) {}
  // The syntax outlives this.
  explicit ObjectCallReader(const CallSyntax& syntax) : syntax_(&syntax) {}

  // Takes none before the first "{".
  size_t push(std::string_view text) override;
  State state() const override { return state_; }
  const std::optional<std::string>& name() const override { return name_; }
  std::string take_arguments() override;
  const std::string& raw() const override { return raw_; }
  std::string take_rest() override;
  bool end_text() override;

 private:
  enum class Place { kStart, kKeyOrEnd, kKey, kColon, kValue, kInValue, kNext };

  void take(char letter);
  void take_argument(char letter);
  void take_value(char letter);
  void give_up();
  void end_key();
  void end_value();
  void end_member();
  void end_object();
  bool is_arguments() const { return key_ == "arguments" || key_ == "parameters"; }
  bool is_name() const { return key_ == syntax_->name_key; }

  const CallSyntax* syntax_;
  State state_ = State::kOpen;
  Place place_ = Place::kStart;
  std::string raw_;
  std::string rest_;            // taken, and to be read again
  std::string checked_;         // raw_, but for members that are left out
  std::string key_;             // of the member being read
  std::set<std::string> keys_;  // that have come
  bool left_out_ = false;       // the member's key had come already
  size_t kept_ = 0;             // of checked_: what is before the member
  std::string value_;           // its JSON text, but for arguments that are an object
  size_t depth_ = 0;            // of the value: arrays and objects that are open
  bool in_string_ = false;
  bool escaped_ = false;
  std::optional<LiteralReader>
      literal_;                       // of arguments that are an object: they go out as they come
  std::optional<size_t> hidden_end_;  // of raw_: behind the first mark within a text of them
  bool has_arguments_ = false;
  std::optional<std::string> name_;
  std::string arguments_;  // not taken yet
};

}  // namespace lockstep
