// Reads a call whose name and arguments stand between marks, as a row of CallSyntax says: CallForm
// kLiteral and kPairs. The arguments come out as a JSON object, as they come. A parameter that is
// given twice is read and left out: the first one counts. Pairs may hold pairs, where the row says
// so: the schema of the function, or else the first key, tells a list from an object.
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/common/call_reader.h"
#include "server/api/common/literal_reader.h"
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
  std::string take_rest() override;
  bool end_text() override;

 private:
  enum class Place {
    kHead,
    kId,
    kName,
    kNameEnd,  // the mark behind the name, or the one before a number
    kNumber,
    kLiteralStart,
    kLiteral,
    kPairOrEnd,
    kKey,
    kValueOpen,
    kValue,
    kCallEnd,
  };

  // The quotes of a family around a value. All of it: what looks like the quote's end is text but
  // before the value's end, or before another quote. Part of a text: the first end is the end.
  enum class Quote { kNone, kAll, kPart };

  // A place that may be the end of the quote around all of a value.
  struct QuoteEnd {
    size_t bytes = 0;  // of window_ before it
    size_t next = 0;   // in window_: behind it, and white space
  };

  // All arguments, or a value that is made of pairs.
  struct Container {
    bool is_list = false;
    bool has_any = false;
    bool left_out = false;
    std::string end = {};             // of its value
    std::set<std::string> keys = {};  // that have come
    size_t path_bytes = 0;            // of path_, up to its own pairs
  };

  void take(char letter);
  void take_id(char letter);
  void take_name(char letter);
  void take_name_end(char letter);
  void take_number(char letter);
  void take_literal_start(char letter);
  void take_literal(char letter);
  void take_pair_or_end(char letter);
  void take_key(char letter);
  void take_end(char letter);  // of a container that is made of pairs with ends of their own
  void take_value(char letter);
  bool take_value_begin(char letter);  // whether more must come before it is a value's text
  bool take_quote(char letter);        // whether it is none of the value's text or end by itself
  std::optional<size_t> find_quoted_end();
  size_t held_bytes();
  void tell_all();
  void take_json_value(char letter, bool at_mark);
  size_t behind_space(size_t& place) const;

  // Adds the letter, but for white space before a mark, to window_ and says which of the marks it
  // holds now: 0 for the first one. None while it may become one; where it cannot, the call is
  // broken.
  std::optional<size_t> match(char letter, std::initializer_list<std::string_view> marks);
  void announce();  // the name
  bool is_nested() const { return !syntax_->pairs.item_key.empty(); }
  void begin_value(bool is_json);
  void open_container(char first_of_key);
  void close_container();
  void end_value(size_t bytes);  // of window_, which holds the mark behind them as well
  void tell_raw(bool ends);      // what is sure of a text in window_
  std::optional<size_t> find_hidden_end() const;
  void give_up_literal();  // it is none: it ended at the mark that seemed to be within a text
  std::string& told() { return repeats_ ? left_out_ : arguments_; }  // for the value being read
  void give_up_quote();  // it has no end, so that the call ended within it
  void finish();

  const CallSyntax* syntax_;
  State state_ = State::kOpen;
  Place place_ = Place::kHead;
  std::string raw_;
  std::string rest_;    // taken, and to be read again
  std::string window_;  // what may become a mark; of a value, what has not been told yet
  std::string read_name_;
  std::optional<std::string> name_;
  const ParameterKinds* kinds_ = nullptr;
  std::string arguments_;  // all of them
  size_t taken_ = 0;       // of arguments_
  // All arguments, or a value that begins as a JSON text or container does; none: it is no JSON.
  std::optional<LiteralReader> literal_;
  // The end of the first mark within a text of it: in raw_, or, of a value, in window_.
  std::optional<size_t> hidden_end_;
  // For pairs:
  std::vector<Container> containers_ = {Container{}};  // open ones; the first holds all arguments
  std::string path_;                                   // of the value: see ParameterKinds
  bool opens_value_ = false;  // the key is the first of a container that is a value
  std::string key_;
  bool repeats_ = false;  // the key had come already, or that of a container around it
  std::string left_out_;  // of such a pair
  ParameterKind kind_;
  std::string value_end_;
  bool before_value_ = false;    // its text has not begun: a quote may, or pairs
  size_t value_begin_ = 0;       // in window_, while before_value_: behind white space
  bool at_value_start_ = false;  // none of its text has been told
  Quote quote_ = Quote::kNone;   // that is open
  std::optional<QuoteEnd> quote_end_;
  // The end of the first value's end within the open quote, in raw_.
  std::optional<size_t> quote_hides_;
  std::string json_;     // of literal_
  size_t json_end_ = 0;  // in window_, once literal_ is whole
};

}  // namespace lockstep
