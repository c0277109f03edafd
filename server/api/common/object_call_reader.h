// Reads a call that is an object: {"name": …, "arguments": {…}}.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api/common/call_reader.h"

namespace lockstep {

class ObjectCallReader final : public CallReader {
 public:
  // Takes none before the first "{".
  size_t push(std::string_view text) override;
  State state() const override { return state_; }
  const std::optional<std::string>& name() const override { return name_; }
  std::string take_arguments() override;
  const std::string& raw() const override { return raw_; }

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
