// Reads one call of a tool, {"name": …, "arguments": {…}}, from text that comes in pieces.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

class CallReader {
 public:
  enum class State {
    kOpen,    // wants more
    kWhole,   // the object is complete, and sound
    kBroken,  // it is no call
  };

  // Takes bytes up to the end of the object, or of its name, and says how many it took; none before
  // the first "{". The name is an end since the rest may be no call's.
  size_t push(std::string_view text);

  State state() const { return state_; }
  // Once it is known.
  const std::optional<std::string>& name() const { return name_; }
  // The JSON text of the arguments that came since the last call of this; "{}" at the end of a
  // call without arguments.
  std::string take_arguments();
  // Everything that was taken.
  const std::string& raw() const { return raw_; }

 private:
  enum class Place { kStart, kKeyOrEnd, kKey, kColon, kValue, kInValue, kNext };

  void take(char letter);
  void take_value(char letter);
  void end_key();
  void end_value();
  void end_object();
  bool is_arguments() const { return key_ == "arguments" || key_ == "parameters"; }

  State state_ = State::kOpen;
  Place place_ = Place::kStart;
  std::string raw_;
  std::string key_;    // of the member being read
  std::string value_;  // its JSON text, but for arguments that are an object
  size_t depth_ = 0;   // of the value: arrays and objects that are open
  bool in_string_ = false;
  bool escaped_ = false;
  bool streams_ = false;  // the value goes to arguments_ as it comes
  bool has_arguments_ = false;
  std::optional<std::string> name_;
  std::string arguments_;  // not taken yet
};

}  // namespace lockstep
