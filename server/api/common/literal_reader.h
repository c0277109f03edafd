// Reads one value of a call's arguments while its text comes, in the syntax in which its family
// writes values, and says it as JSON. JSON passes as it is written.
//
// A member whose name its object has already is read and left out: the first one counts, in every
// syntax. So what comes out never has a name twice, whatever a model or a grammar makes.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/common/turn_syntax.h"

namespace lockstep {

class LiteralReader {
 public:
  enum class State {
    kOpen,    // wants more
    kWhole,   // the value is complete
    kBroken,  // it is none of the syntax
  };

  static constexpr size_t kDepthMax = 48;  // requests may nest 64 deep

  // `arguments`: the value is all arguments of a call, and not one of them. Either begins with a
  // bracket or, but for arguments, a quote.
  LiteralReader(ValueSyntax syntax, bool arguments) : syntax_(syntax), arguments_(arguments) {}

  // Takes a letter in state kOpen and appends what is certain then to `json`.
  void take(char letter, std::string& json);
  State state() const { return state_; }
  // Within a text in quotes, which may hold any mark.
  bool in_string() const { return inside_ == Inside::kString; }

  // The letter with which all arguments of a call begin.
  static char opening(ValueSyntax syntax) { return syntax == ValueSyntax::kPython ? '(' : '{'; }

 private:
  enum class Inside { kNothing, kString, kStringEnd, kWord, kBareName };
  enum class Next { kValue, kValueOrClose, kName, kNameOrClose, kAssign, kCommaOrClose };
  struct Container {
    char close = ']';
    char assign = 0;  // between name and value; 0: a list
    bool bare_names = false;
    bool quoted_names = true;
    bool has_any = false;  // something of it was told
    std::set<std::string> names = {};
  };

  bool is_json() const { return syntax_ == ValueSyntax::kJson; }
  void take_between(char letter);
  void begin_name(char letter);
  void end_name();
  void begin_value(char letter);
  void end_value();
  void open(char letter);
  void next_element();
  void close();
  void begin_string(char letter, bool is_name);
  void take_string(char letter);
  void take_marked_string(char letter);
  void take_string_end(char letter);
  void take_escape(char letter);
  void take_escaped_number(char letter, size_t digits);
  void end_string();
  void end_word();

  void tell(std::string_view json);       // unless it is left out
  void tell_text(std::string_view json);  // of a string: into the name that it is, or told
  void tell_plain(std::string_view text);
  void pass(char letter);  // of JSON

  ValueSyntax syntax_;
  bool arguments_;
  State state_ = State::kOpen;
  Inside inside_ = Inside::kNothing;
  Next next_ = Next::kValue;
  std::vector<Container> containers_;  // open ones
  std::string* json_ = nullptr;        // of the letter being taken
  std::string word_;                   // of a number or a word
  bool is_name_ = false;               // the string is a member's name
  std::string name_;                   // its text as a JSON string has it
  char quote_ = 0;                     // that ends the string; 0: the syntax's mark does
  bool at_mark_ = false;               // the mark with which the string begins is not whole yet
  std::string window_;                 // of a string: what may be no part of it
  std::string escape_;                 // begun
  size_t left_out_ = 0;                // the depth at which a member is left out; 0: none is
  bool holds_ = false;                 // of JSON: a member may be left out, its name is read first
  std::string held_;
};

}  // namespace lockstep
