#include "server/api/common/marked_call_reader.h"

#include <algorithm>
#include <utility>

#include "engine/base/json.h"
#include "server/api/common/text_marks.h"

namespace lockstep {
namespace {

constexpr size_t kNameBytesMax = 128;

}  // namespace

MarkedCallReader::MarkedCallReader(const CallSyntax& syntax) : syntax_(&syntax) {
  if (syntax_->head.empty()) place_ = syntax_->id_end.empty() ? Place::kName : Place::kId;
}

MarkedCallReader::MarkedCallReader(const CallSyntax& syntax, std::string name)
    : syntax_(&syntax), place_(Place::kLiteralStart), name_(std::move(name)) {}

size_t MarkedCallReader::push(std::string_view text) {
  size_t taken = 0;
  const bool had_name = name_.has_value();
  while (taken < text.size() && state_ == State::kOpen && name_.has_value() == had_name &&
         rest_.empty()) {
    take(text[taken++]);
  }
  if (state_ == State::kOpen && place_ == Place::kValue && kind_.raw && !before_value_) {
    tell_raw(false);
  }
  return taken;
}

std::string MarkedCallReader::take_arguments() {
  std::string more = arguments_.substr(taken_);
  taken_ = arguments_.size();
  return more;
}

std::string MarkedCallReader::take_rest() {
  return std::exchange(rest_, {});
}

bool MarkedCallReader::end_text() {
  const bool is_too_long = raw_.size() > kBytesMax;
  if (quote_hides_ && (state_ == State::kOpen || is_too_long)) give_up_quote();
  if (state_ == State::kOpen && hidden_end_) give_up_literal();
  return !rest_.empty();
}

void MarkedCallReader::take(char letter) {
  raw_ += letter;
  if (raw_.size() > kBytesMax) state_ = State::kBroken;
  switch (place_) {
    case Place::kHead:
      if (match(letter, {without_space(syntax_->head)})) {
        place_ = syntax_->id_end.empty() ? Place::kName : Place::kId;
      }
      return;
    case Place::kId:
      return take_id(letter);
    case Place::kName:
      return take_name(letter);
    case Place::kNameEnd:
      return take_name_end(letter);
    case Place::kNumber:
      return take_number(letter);
    case Place::kLiteralStart:
      return take_literal_start(letter);
    case Place::kLiteral:
      return take_literal(letter);
    case Place::kPairOrEnd:
      return take_pair_or_end(letter);
    case Place::kKey:
      return take_key(letter);
    case Place::kValueOpen:
      if (match(letter, {syntax_->pairs.value_open})) place_ = Place::kValue;
      return;
    case Place::kValue:
      return take_value(letter);
    case Place::kCallEnd:
      if (match(letter, {without_space(syntax_->call_end)})) finish();
      return;
  }
}

std::optional<size_t> MarkedCallReader::match(char letter,
                                              std::initializer_list<std::string_view> marks) {
  if (window_.empty() && is_turn_space(letter)) return std::nullopt;
  window_ += letter;
  bool may_match = false;
  size_t index = 0;
  for (const std::string_view mark : marks) {
    if (window_ == mark) {
      window_.clear();
      return index;
    }
    may_match = may_match || may_become(window_, mark);
    ++index;
  }
  if (!may_match) state_ = State::kBroken;
  return std::nullopt;
}

void MarkedCallReader::take_id(char letter) {
  if (window_.empty() && is_name_letter(letter)) return;
  if (match(letter, {syntax_->id_end})) place_ = Place::kName;
}

void MarkedCallReader::take_name(char letter) {
  if (is_name_letter(letter) && read_name_.size() < kNameBytesMax) {
    read_name_ += letter;
    return;
  }
  if (read_name_.empty()) {
    state_ = State::kBroken;
    return;
  }
  if (!without_space(syntax_->name_end).empty()) {
    place_ = Place::kNameEnd;
    return take_name_end(letter);
  }
  // Only what follows tells whether it was a name.
  if (syntax_->form == CallForm::kPairs) {
    place_ = Place::kPairOrEnd;
    return take_pair_or_end(letter);
  }
  place_ = Place::kLiteralStart;
  take_literal_start(letter);
}

void MarkedCallReader::take_name_end(char letter) {
  const auto mark = match(letter, {without_space(syntax_->name_end), syntax_->number_open});
  if (!mark) return;
  if (*mark == 1) {
    place_ = Place::kNumber;
    return;
  }
  announce();
}

void MarkedCallReader::take_number(char letter) {
  if (window_.empty() && is_name_letter(letter)) return;
  if (match(letter, {without_space(syntax_->name_end)})) announce();
}

void MarkedCallReader::announce() {
  std::string_view name = read_name_;
  if (!syntax_->prefix.empty() && name.starts_with(syntax_->prefix)) {
    name.remove_prefix(syntax_->prefix.size());
  }
  name_ = std::string(name);
  place_ = syntax_->form == CallForm::kPairs ? Place::kPairOrEnd : Place::kLiteralStart;
}

void MarkedCallReader::take_literal_start(char letter) {
  if (window_.empty() && letter == LiteralReader::opening(syntax_->values)) {
    if (!name_) announce();
    place_ = Place::kLiteral;
    literal_.emplace(syntax_->values, /*arguments=*/true);
    return take_literal(letter);
  }
  // Behind a name alone nothing else makes it a call.
  const std::string_view end = name_ ? without_space(syntax_->call_end) : std::string_view();
  if (!match(letter, {end})) return;
  arguments_ = "{}";
  finish();
}

void MarkedCallReader::take_literal(char letter) {
  literal_->take(letter, arguments_);
  switch (literal_->state()) {
    case LiteralReader::State::kOpen:
      if (!hidden_end_ && literal_->in_string()) hidden_end_ = find_hidden_end();
      return;
    case LiteralReader::State::kBroken:
      return give_up_literal();
    case LiteralReader::State::kWhole:
      literal_.reset();
      hidden_end_.reset();
      place_ = Place::kCallEnd;
      if (without_space(syntax_->call_end).empty()) finish();
  }
}

// The end of raw_ if a mark of the call's end stands there; the end of a message is not the call's.
std::optional<size_t> MarkedCallReader::find_hidden_end() const {
  const std::string_view end = without_space(syntax_->call_end);
  // A single letter is no mark to go by.
  if (end.size() > 1 && raw_.ends_with(end)) return raw_.size();
  if (syntax_->messages == nullptr) return std::nullopt;
  for (const std::string_view mark : syntax_->messages->ends) {
    if (!mark.empty() && raw_.ends_with(mark)) return raw_.size() - mark.size();
  }
  return std::nullopt;
}

void MarkedCallReader::take_pair_or_end(char letter) {
  const std::string_view open = syntax_->pairs.open;
  // The marks of nested pairs all begin alike: what follows tells them apart.
  const auto mark =
      is_nested() ? match(letter, {open}) : match(letter, {open, without_space(syntax_->call_end)});
  if (!mark) return;
  if (!name_) announce();
  if (*mark == 0) {
    key_.clear();
    place_ = Place::kKey;
    return;
  }
  finish();
}

void MarkedCallReader::take_key(char letter) {
  const PairSyntax& pairs = syntax_->pairs;
  if (is_nested() && !opens_value_ && (key_.starts_with('/') || (key_.empty() && letter == '/'))) {
    return take_end(letter);
  }
  key_ += letter;
  const size_t most = PairSyntax::kNestedKeyBytesMax + pairs.key_end.size();
  if (is_nested() && key_.size() > most) state_ = State::kBroken;
  for (const std::string_view end : {pairs.key_end, pairs.json_key_end}) {
    if (end.empty() || end.back() != letter || !key_.ends_with(end)) continue;
    key_.resize(key_.size() - end.size());
    return begin_value(end == pairs.json_key_end);
  }
  if (pairs.type_open.empty() || !key_.ends_with(pairs.type_end)) return;
  const size_t type = key_.rfind(pairs.type_open);
  if (type == std::string::npos) return;
  key_.resize(type);
  begin_value(/*is_json=*/true);
}

void MarkedCallReader::take_end(char letter) {
  key_ += letter;
  const bool is_call = containers_.size() == 1;
  std::string_view end = is_call ? without_space(syntax_->call_end) : containers_.back().end;
  end.remove_prefix(std::min(syntax_->pairs.open.size(), end.size()));
  if (may_become(key_, end)) return;
  if (key_ != end) {
    state_ = State::kBroken;
  } else if (is_call) {
    finish();
  } else {
    close_container();
  }
}

void MarkedCallReader::begin_value(bool is_json) {
  const PairSyntax& pairs = syntax_->pairs;
  if (std::exchange(opens_value_, false)) {
    // The key decides where the schema leaves it open.
    const bool may_be_list = admits(kind_, "array");
    containers_.push_back(
        {.is_list = may_be_list && (!admits(kind_, "object") || key_ == pairs.item_key),
         .left_out = repeats_,
         .end = value_end_});
    path_ += pairs.key_end;
    containers_.back().path_bytes = path_.size();
  }
  Container& container = containers_.back();
  path_.resize(container.path_bytes);
  path_ += key_;
  kind_ = {};
  if (!pairs.json_key_end.empty() || !pairs.type_open.empty()) {
    kind_.raw = !is_json;
  } else if (kinds_ != nullptr) {
    if (const auto known = kinds_->find(path_); known != kinds_->end()) kind_ = known->second;
  }
  const bool again = !container.is_list && !container.keys.insert(key_).second;
  repeats_ = container.left_out || again;
  std::string& json = told();
  json += container.has_any ? ", " : (container.is_list ? "[" : "{");
  container.has_any = true;
  if (!container.is_list) {
    json += '"';
    append_json_string(key_, json);
    json += "\": ";
  }
  if (kind_.raw) json += '"';
  value_end_ = pairs.value_end;
  if (is_nested()) value_end_ += key_ + std::string(pairs.key_end);
  before_value_ = true;
  value_begin_ = 0;
  at_value_start_ = true;
  quote_ = Quote::kNone;
  quote_end_.reset();
  place_ = pairs.value_open.empty() ? Place::kValue : Place::kValueOpen;
}

void MarkedCallReader::open_container(char first_of_key) {
  if (containers_.size() >= LiteralReader::kDepthMax) {
    state_ = State::kBroken;
    return;
  }
  window_.clear();
  key_ = first_of_key;
  opens_value_ = true;
  place_ = Place::kKey;
}

void MarkedCallReader::close_container() {
  repeats_ = containers_.back().left_out;
  told() += containers_.back().is_list ? ']' : '}';
  containers_.pop_back();
  left_out_.clear();
  place_ = Place::kPairOrEnd;
}

// The first place in window_, from `place` on, that is not white space, which `place` becomes: so
// that no letter is looked at twice.
size_t MarkedCallReader::behind_space(size_t& place) const {
  while (place < window_.size() && is_turn_space(window_[place])) ++place;
  return place;
}

bool MarkedCallReader::take_value_begin(char letter) {
  const PairSyntax& pairs = syntax_->pairs;
  std::string_view said = window_;
  // White space before a quote is none of a text's.
  if (!kind_.raw || !pairs.quote_open.empty()) said.remove_prefix(behind_space(value_begin_));
  if (said.empty()) return true;
  if (!pairs.quote_open.empty()) {
    if (may_become(said, pairs.quote_open)) return true;
    if (said == pairs.quote_open) {
      window_.clear();
      quote_ = Quote::kAll;
      before_value_ = false;
      return true;
    }
  }
  if (is_nested() && !kind_.raw) {
    if (said == pairs.open || may_become(said, pairs.open)) return true;
    if (said.size() == pairs.open.size() + 1 && said.starts_with(pairs.open) && letter != '/') {
      open_container(letter);
      return true;
    }
  }
  before_value_ = false;
  if (kind_.raw || said.size() > 1) return false;
  if (letter != '"' && letter != '{' && letter != '[') return false;
  json_.clear();
  literal_.emplace(ValueSyntax::kJson, /*arguments=*/false);
  literal_->take(letter, json_);
  return true;
}

void MarkedCallReader::take_value(char letter) {
  window_ += letter;
  if (before_value_ && take_value_begin(letter)) return;
  if (!syntax_->pairs.quote_open.empty() && !literal_ && take_quote(letter)) return;
  const bool at_mark = letter == value_end_.back() && window_.ends_with(value_end_);
  if (literal_) return take_json_value(letter, at_mark);
  if (at_mark) end_value(window_.size() - value_end_.size());
}

bool MarkedCallReader::take_quote(char letter) {
  const PairSyntax& pairs = syntax_->pairs;
  // In raw_, since what has been told of the text is no more in window_.
  const bool at_end = letter == pairs.value_end.back() && raw_.ends_with(pairs.value_end);
  if (quote_ != Quote::kNone && at_end && !quote_hides_) quote_hides_ = raw_.size();
  const auto ends_with = [&](std::string_view mark) {
    return letter == mark.back() && window_.ends_with(mark);
  };
  if (quote_ == Quote::kAll) {
    // In raw_, since what was left out of window_ may make a mark of what was around it.
    if (letter == pairs.quote_close.back() && raw_.ends_with(pairs.quote_close)) {
      quote_end_ = {.bytes = window_.size() - pairs.quote_close.size(), .next = window_.size()};
    }
    const size_t both = pairs.quote_close.size() + pairs.quote_open.size();
    if (ends_with(pairs.quote_open) && window_.size() >= both &&
        std::string_view(window_).substr(window_.size() - both).starts_with(pairs.quote_close)) {
      window_.resize(window_.size() - both);
      quote_end_.reset();
      quote_hides_.reset();
    } else if (ends_with(pairs.value_end)) {
      if (const auto end = find_quoted_end()) end_value(*end);
    }
    return true;
  }
  if (!kind_.raw) return false;
  const bool is_open = quote_ == Quote::kPart;
  const std::string_view mark = is_open ? pairs.quote_close : pairs.quote_open;
  if (!ends_with(mark)) return is_open;
  window_.resize(window_.size() - mark.size());
  tell_all();
  quote_hides_.reset();
  quote_ = is_open ? Quote::kNone : Quote::kPart;
  return true;
}

// The end of the text in the quote around all of a value, if window_ ends with the marks behind it:
// the value's end may have begun only.
std::optional<size_t> MarkedCallReader::find_quoted_end() {
  if (!quote_end_) return std::nullopt;
  const std::string_view end = syntax_->pairs.value_end;
  const std::string_view text = window_;
  const size_t end_bytes = text.ends_with(end) ? end.size() : begun_bytes(text, end);
  if (behind_space(quote_end_->next) == text.size() - end_bytes) return quote_end_->bytes;
  return std::nullopt;
}

// The bytes at the end of window_ that may be none of the text.
size_t MarkedCallReader::held_bytes() {
  const PairSyntax& pairs = syntax_->pairs;
  const std::string_view text = window_;
  switch (quote_) {
    case Quote::kAll: {
      if (const auto end = find_quoted_end()) return text.size() - *end;
      const std::string again = std::string(pairs.quote_close) + std::string(pairs.quote_open);
      return begun_bytes(text, again);
    }
    case Quote::kPart:
      return begun_bytes(text, pairs.quote_close);
    case Quote::kNone:
      break;
  }
  return std::max(begun_bytes(text, value_end_), begun_bytes(text, pairs.quote_open));
}

void MarkedCallReader::tell_all() {
  append_json_string(window_, told());
  at_value_start_ = false;
  window_.clear();
}

// A text of JSON may hold the mark. So the mark is the value's end only behind all of a JSON value;
// where the value turns out to be no JSON, the first mark is.
void MarkedCallReader::take_json_value(char letter, bool at_mark) {
  const std::string_view end = value_end_;
  if (literal_->state() == LiteralReader::State::kOpen) {
    literal_->take(letter, json_);
    if (literal_->state() == LiteralReader::State::kBroken) return give_up_literal();
    json_end_ = window_.size();
    if (at_mark && !hidden_end_) hidden_end_ = window_.size();
    return;
  }
  const std::string_view behind = std::string_view(window_).substr(behind_space(json_end_));
  if (behind == end) return end_value(window_.size() - end.size());
  if (!may_become(behind, end)) give_up_literal();
}

void MarkedCallReader::give_up_literal() {
  literal_.reset();
  if (place_ == Place::kLiteral) {
    state_ = State::kBroken;
    if (!hidden_end_) return;
    rest_ = raw_.substr(*hidden_end_);
    raw_.resize(*hidden_end_);
    return;
  }
  if (!hidden_end_) return;
  const size_t value_bytes = *hidden_end_ - value_end_.size();
  rest_ = window_.substr(*hidden_end_);
  raw_.resize(raw_.size() - rest_.size());
  window_.resize(*hidden_end_);
  end_value(value_bytes);
}

void MarkedCallReader::give_up_quote() {
  state_ = State::kBroken;
  rest_ = raw_.substr(*quote_hides_);
  raw_.resize(*quote_hides_);
  quote_hides_.reset();
}

void MarkedCallReader::end_value(size_t bytes) {
  window_.resize(bytes);
  place_ = Place::kPairOrEnd;
  if (kind_.raw) {
    tell_raw(true);
    told() += '"';
  } else if (literal_) {
    told() += argument_value(json_, kind_);
  } else if (is_nested() && without_space(window_).empty() && !admits(kind_, "string")) {
    told() += admits(kind_, "array") ? "[]" : "{}";
  } else {
    const std::string_view padding = syntax_->pairs.padding;
    std::string_view value = window_;
    if (!padding.empty() && value.starts_with(padding)) value.remove_prefix(padding.size());
    if (!padding.empty() && value.ends_with(padding)) value.remove_suffix(padding.size());
    told() += argument_value(value, kind_);
  }
  window_.clear();
  left_out_.clear();
  literal_.reset();
  hidden_end_.reset();
  quote_end_.reset();
  quote_hides_.reset();
}

void MarkedCallReader::tell_raw(bool ends) {
  const std::string_view padding = syntax_->pairs.padding;
  const std::string_view text = window_;
  size_t first = 0;
  size_t last = text.size() - (ends ? 0 : held_bytes());
  if (last == 0 && !ends) return;
  if (at_value_start_ && !padding.empty() && text.starts_with(padding)) first = padding.size();
  if (!padding.empty() && text.substr(first, last - first).ends_with(padding)) {
    last -= padding.size();
  }
  append_json_string(text.substr(first, last - first), told());
  at_value_start_ = false;
  window_.erase(0, last);
  if (quote_end_ && last > quote_end_->bytes) {
    quote_end_.reset();
  } else if (quote_end_) {
    quote_end_ = {.bytes = quote_end_->bytes - last, .next = quote_end_->next - last};
  }
}

void MarkedCallReader::finish() {
  if (syntax_->form == CallForm::kPairs) arguments_ += containers_.front().has_any ? "}" : "{}";
  const auto arguments = parse_json(arguments_);
  state_ = arguments && arguments->is_object() ? State::kWhole : State::kBroken;
}

}  // namespace lockstep
