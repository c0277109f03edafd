#include "server/api/common/literal_reader.h"

#include <array>
#include <optional>
#include <utility>

#include "engine/base/json.h"
#include "engine/text/utf8.h"
#include "server/api/common/parameter_types.h"
#include "server/api/common/text_marks.h"

namespace lockstep {
namespace {

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

bool is_word_letter(char letter) {
  const bool letters = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
  return letters || is_digit(letter) || letter == '+' || letter == '-' || letter == '.' ||
         letter == '_';
}

bool is_control(char letter) {
  return static_cast<unsigned char>(letter) < 0x20;
}

bool is_bare_letter(char letter) {
  constexpr std::string_view kOthers = " ,:=(){}[]\"'<>|\\\x7F";
  return !is_control(letter) && kOthers.find(letter) == std::string_view::npos;
}

bool is_json_number(std::string_view word) {
  const auto value = parse_json(word);
  return value && value->is_number();
}

// Python's number as JSON writes it, or what is none.
std::string python_number(std::string_view word) {
  std::string number;
  for (size_t index = 0; index < word.size(); ++index) {
    const char letter = word[index];
    const bool after_digit = !number.empty() && is_digit(number.back());
    if (letter == '_' && after_digit) continue;
    if (letter == '+' && index == 0) continue;
    if (letter == '.' && !after_digit) number += '0';
    number += letter;
    const bool before_digit = index + 1 < word.size() && is_digit(word[index + 1]);
    if (letter == '.' && !before_digit) number += '0';
  }
  return number;
}

// Its name in JSON; none: it is no value.
std::optional<std::string> json_of_word(std::string_view word, ValueSyntax syntax) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kWords = {
      {{"true", "true"},
       {"false", "false"},
       {"null", "null"},
       {"True", "true"},
       {"False", "false"},
       {"None", "null"}}};
  for (const auto& [known, json] : kWords) {
    const bool is_own = syntax != ValueSyntax::kJson || known == json;
    if (word == known && is_own) return std::string(json);
  }
  std::string number = syntax == ValueSyntax::kJson ? std::string(word) : python_number(word);
  if (!is_json_number(number)) return std::nullopt;
  return number;
}

}  // namespace

void LiteralReader::take(char letter, std::string& json) {
  json_ = &json;
  switch (inside_) {
    case Inside::kString:
      take_string(letter);
      break;
    case Inside::kStringEnd:
      take_string_end(letter);
      break;
    case Inside::kWord:
      if (is_word_letter(letter)) {
        word_ += letter;
        break;
      }
      end_word();
      if (state_ == State::kOpen) take_between(letter);
      break;
    case Inside::kBareName:
      if (is_bare_letter(letter)) {
        tell_plain({&letter, 1});
        break;
      }
      inside_ = Inside::kNothing;
      next_ = Next::kAssign;
      take_between(letter);
      break;
    case Inside::kNothing:
      take_between(letter);
      break;
  }
  if (is_json() && state_ != State::kBroken) pass(letter);
}

void LiteralReader::take_between(char letter) {
  if (is_turn_space(letter)) return;
  switch (next_) {
    case Next::kValueOrClose:
    case Next::kValue:
      if (next_ == Next::kValueOrClose && letter == containers_.back().close) return close();
      return begin_value(letter);
    case Next::kNameOrClose:
    case Next::kName:
      if (next_ == Next::kNameOrClose && letter == containers_.back().close) return close();
      return begin_name(letter);
    case Next::kAssign:
      if (letter == containers_.back().assign) return end_name();
      break;
    case Next::kCommaOrClose:
      if (letter == ',') return next_element();
      if (letter == containers_.back().close) return close();
      break;
  }
  state_ = State::kBroken;
}

void LiteralReader::begin_name(char letter) {
  const Container& object = containers_.back();
  name_.clear();
  const bool is_quote = letter == '"' || (letter == '\'' && syntax_ == ValueSyntax::kPython) ||
                        (letter == '<' && syntax_ == ValueSyntax::kGemma);
  if (object.quoted_names && is_quote) return begin_string(letter, /*is_name=*/true);
  if (!object.bare_names || !is_bare_letter(letter)) {
    state_ = State::kBroken;
    return;
  }
  inside_ = Inside::kBareName;
  is_name_ = true;
  tell_plain({&letter, 1});
}

void LiteralReader::end_name() {
  Container& object = containers_.back();
  is_name_ = false;
  next_ = Next::kValue;
  const auto name = parse_json('"' + name_ + '"');
  if (!name) {
    state_ = State::kBroken;
    return;
  }
  const bool is_new = object.names.insert(name->get<std::string>()).second;
  const std::string held = std::exchange(held_, {});
  holds_ = false;
  if (left_out_ != 0) return;
  if (!is_new) {
    left_out_ = containers_.size();
    return;
  }
  if (is_json()) return tell(held);
  if (std::exchange(object.has_any, true)) tell(", ");
  tell("\"" + name_ + "\": ");
}

void LiteralReader::begin_value(char letter) {
  const bool is_outermost = containers_.empty();
  if (is_outermost && arguments_ && letter != opening(syntax_)) {
    state_ = State::kBroken;
    return;
  }
  Container* const list =
      !is_outermost && containers_.back().assign == 0 ? &containers_.back() : nullptr;
  if (list != nullptr && std::exchange(list->has_any, true) && !is_json()) tell(", ");
  const bool is_quote = letter == '"' || (letter == '\'' && syntax_ == ValueSyntax::kPython) ||
                        (letter == '<' && syntax_ == ValueSyntax::kGemma);
  if (is_quote) return begin_string(letter, /*is_name=*/false);
  if (letter == '{' || letter == '[' || (is_outermost && letter == opening(syntax_))) {
    return open(letter);
  }
  if (is_outermost || !is_word_letter(letter)) {
    state_ = State::kBroken;
    return;
  }
  inside_ = Inside::kWord;
  word_ = letter;
}

void LiteralReader::end_value() {
  next_ = Next::kCommaOrClose;
  if (containers_.empty()) state_ = State::kWhole;
}

void LiteralReader::open(char letter) {
  if (containers_.size() >= kDepthMax) {
    state_ = State::kBroken;
    return;
  }
  const bool is_gemma = syntax_ == ValueSyntax::kGemma;
  if (letter == '[') {
    containers_.push_back({.close = ']'});
    next_ = Next::kValueOrClose;
  } else {
    const bool keywords = letter == '(';
    containers_.push_back({.close = keywords ? ')' : '}',
                           .assign = keywords ? '=' : ':',
                           .bare_names = keywords || is_gemma,
                           .quoted_names = !keywords});
    next_ = Next::kNameOrClose;
  }
  if (!is_json()) tell(letter == '[' ? "[" : "{");
}

// JSON has none behind its last comma.
void LiteralReader::next_element() {
  if (left_out_ == containers_.size()) left_out_ = 0;
  const bool is_list = containers_.back().assign == 0;
  if (is_list) {
    next_ = is_json() ? Next::kValue : Next::kValueOrClose;
  } else {
    next_ = is_json() ? Next::kName : Next::kNameOrClose;
    holds_ = is_json() && left_out_ == 0;
  }
}

void LiteralReader::close() {
  if (left_out_ == containers_.size()) left_out_ = 0;
  const bool is_list = containers_.back().assign == 0;
  containers_.pop_back();
  if (!is_json()) tell(is_list ? "]" : "}");
  end_value();
}

void LiteralReader::begin_string(char letter, bool is_name) {
  inside_ = Inside::kString;
  is_name_ = is_name;
  quote_ = letter == '<' ? '\0' : letter;
  window_.clear();
  escape_.clear();
  at_mark_ = quote_ == 0;
  if (at_mark_) window_ = letter;
  if (!is_name && !is_json()) tell("\"");
}

void LiteralReader::take_string(char letter) {
  if (quote_ == 0) return take_marked_string(letter);
  if (!escape_.empty()) return take_escape(letter);
  if (is_json() && is_control(letter)) {
    state_ = State::kBroken;
  } else if (letter == '\\') {
    escape_ = letter;
  } else if (letter != quote_) {
    tell_plain({&letter, 1});
  } else if (syntax_ == ValueSyntax::kPython) {
    inside_ = Inside::kStringEnd;
  } else {
    end_string();
  }
}

// Between two marks.
void LiteralReader::take_marked_string(char letter) {
  window_ += letter;
  if (at_mark_) {
    if (window_ == kGemmaQuote) {
      at_mark_ = false;
      window_.clear();
    } else if (!may_become(window_, kGemmaQuote)) {
      state_ = State::kBroken;
    }
    return;
  }
  const bool ends = window_.ends_with(kGemmaQuote);
  const size_t kept = ends ? kGemmaQuote.size() : begun_bytes(window_, kGemmaQuote);
  tell_plain(std::string_view(window_).substr(0, window_.size() - kept));
  window_.erase(0, window_.size() - kept);
  if (ends) end_string();
}

// Templates write texts between quotes without escaping those within (LFM2 does): a quote ends the
// text where what must follow a text does.
void LiteralReader::take_string_end(char letter) {
  if (is_turn_space(letter)) {
    window_ += letter;
    return;
  }
  const Container& holder = containers_.back();
  const bool follows = is_name_ ? letter == holder.assign : letter == ',' || letter == holder.close;
  if (follows) {
    end_string();
    return take_between(letter);
  }
  inside_ = Inside::kString;
  tell_plain({&quote_, 1});
  tell_plain(std::exchange(window_, {}));
  take_string(letter);
}

void LiteralReader::take_escape(char letter) {
  escape_ += letter;
  if (is_json()) {
    // The digits behind \u are checked where the whole is parsed.
    constexpr std::string_view kLetters = "\"\\/bfnrtu";
    if (kLetters.find(letter) == std::string_view::npos) state_ = State::kBroken;
    if (is_name_) name_ += escape_;
    escape_.clear();
    return;
  }
  const char kind = escape_[1];
  if (kind == 'x') return take_escaped_number(letter, 2);
  if (kind == 'u') return take_escaped_number(letter, 4);
  if (kind == 'U') return take_escaped_number(letter, 8);
  constexpr std::string_view kKinds = "nrtbf\\\"'\nav0";
  constexpr std::array<std::string_view, 12> kMeant = {
      "\\n", "\\r", "\\t", "\\b", "\\f", "\\\\", "\\\"", "'", "", "\\u0007", "\\u000b", "\\u0000"};
  if (const size_t known = kKinds.find(kind); known != std::string_view::npos) {
    tell_text(kMeant[known]);
  } else {
    tell_plain(escape_);
  }
  escape_.clear();
}

void LiteralReader::take_escaped_number(char letter, size_t digits) {
  constexpr size_t kBegin = 2;  // the backslash and the kind
  if (escape_.size() == kBegin) return;
  const bool is_hex =
      is_digit(letter) || (letter >= 'a' && letter <= 'f') || (letter >= 'A' && letter <= 'F');
  if (!is_hex) {
    state_ = State::kBroken;
    return;
  }
  if (escape_.size() < kBegin + digits) return;
  const std::string hex = std::exchange(escape_, {}).substr(kBegin);
  constexpr size_t kJsonDigits = 4;
  if (digits <= kJsonDigits) return tell_text("\\u" + std::string(kJsonDigits - digits, '0') + hex);
  const unsigned long character = std::stoul(hex, nullptr, 16);
  if (character > 0x10FFFF || (character >= 0xD800 && character <= 0xDFFF)) {
    state_ = State::kBroken;
    return;
  }
  std::string text;
  append_utf8(static_cast<uint32_t>(character), text);
  tell_plain(text);
}

void LiteralReader::end_string() {
  inside_ = Inside::kNothing;
  window_.clear();
  escape_.clear();
  if (is_name_) {
    next_ = Next::kAssign;
    return;
  }
  if (!is_json()) tell("\"");
  end_value();
}

void LiteralReader::end_word() {
  inside_ = Inside::kNothing;
  const auto json = json_of_word(word_, syntax_);
  if (!json) {
    state_ = State::kBroken;
    return;
  }
  if (!is_json()) tell(*json);
  end_value();
}

void LiteralReader::tell(std::string_view json) {
  if (left_out_ == 0) *json_ += json;
}

void LiteralReader::tell_text(std::string_view json) {
  if (is_name_) {
    name_ += json;
  } else if (!is_json()) {
    tell(json);
  }
}

void LiteralReader::tell_plain(std::string_view text) {
  if (is_json() && !is_name_) return;
  std::string json;
  append_json_string(text, json);
  tell_text(json);
}

void LiteralReader::pass(char letter) {
  if (left_out_ != 0) return;
  (holds_ ? held_ : *json_) += letter;
}

}  // namespace lockstep
