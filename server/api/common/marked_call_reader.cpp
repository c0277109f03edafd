#include "server/api/common/marked_call_reader.h"

#include <utility>

#include "engine/base/json.h"
#include "server/api/common/text_marks.h"

namespace lockstep {
namespace {

constexpr size_t kNameBytesMax = 128;

}  // namespace

MarkedCallReader::MarkedCallReader(const CallSyntax& syntax) : syntax_(&syntax) {
  if (syntax_->head.empty()) place_ = Place::kName;
}

MarkedCallReader::MarkedCallReader(const CallSyntax& syntax, std::string name)
    : syntax_(&syntax), place_(Place::kJsonStart), name_(std::move(name)) {}

size_t MarkedCallReader::push(std::string_view text) {
  size_t taken = 0;
  const bool had_name = name_.has_value();
  while (taken < text.size() && state_ == State::kOpen && name_.has_value() == had_name) {
    take(text[taken++]);
  }
  if (state_ == State::kOpen && place_ == Place::kValue && kind_.raw) tell_raw(false);
  return taken;
}

std::string MarkedCallReader::take_arguments() {
  std::string more = arguments_.substr(taken_);
  taken_ = arguments_.size();
  return more;
}

void MarkedCallReader::take(char letter) {
  raw_ += letter;
  if (raw_.size() > kBytesMax) state_ = State::kBroken;
  switch (place_) {
    case Place::kHead:
      if (match(letter, {without_space(syntax_->head)})) place_ = Place::kName;
      return;
    case Place::kName:
      return take_name(letter);
    case Place::kNameEnd:
      return take_name_end(letter);
    case Place::kNumber:
      return take_number(letter);
    case Place::kJsonStart:
      return take_json_start(letter);
    case Place::kJson:
      return take_json(letter);
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

void MarkedCallReader::take_name(char letter) {
  if (is_name_letter(letter) && read_name_.size() < kNameBytesMax) {
    read_name_ += letter;
    return;
  }
  if (read_name_.empty()) {
    state_ = State::kBroken;
    return;
  }
  const bool begins_arguments = syntax_->name_end.empty();
  place_ = begins_arguments ? Place::kPairOrEnd : Place::kNameEnd;
  if (begins_arguments) return take_pair_or_end(letter);
  take_name_end(letter);
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
  place_ = syntax_->form == CallForm::kPairs ? Place::kPairOrEnd : Place::kJsonStart;
}

void MarkedCallReader::take_json_start(char letter) {
  if (window_.empty() && letter == '{') {
    place_ = Place::kJson;
    return take_json(letter);
  }
  if (!match(letter, {without_space(syntax_->call_end)})) return;
  arguments_ = "{}";
  finish();
}

bool MarkedCallReader::pass_string(char letter) {
  if (!in_string_) {
    in_string_ = letter == '"';
    return in_string_;
  }
  if (!escaped_ && letter == '"') in_string_ = false;
  escaped_ = !escaped_ && letter == '\\';
  return true;
}

void MarkedCallReader::take_json(char letter) {
  arguments_ += letter;
  if (pass_string(letter)) return;
  if (letter == '{' || letter == '[') ++depth_;
  if (depth_ > kDepthMax) state_ = State::kBroken;
  if ((letter == '}' || letter == ']') && --depth_ == 0) {
    place_ = Place::kCallEnd;
    if (syntax_->call_end.empty()) finish();
  }
}

void MarkedCallReader::take_pair_or_end(char letter) {
  const auto mark = match(letter, {syntax_->pairs.open, without_space(syntax_->call_end)});
  if (!mark) return;
  if (!name_) announce();
  if (*mark == 0) {
    key_.clear();
    place_ = Place::kKey;
    return;
  }
  arguments_ += arguments_.empty() ? "{}" : "}";
  finish();
}

void MarkedCallReader::take_key(char letter) {
  key_ += letter;
  for (const std::string_view end : {syntax_->pairs.key_end, syntax_->pairs.json_key_end}) {
    if (end.empty() || end.back() != letter || !key_.ends_with(end)) continue;
    key_.resize(key_.size() - end.size());
    return begin_value(end == syntax_->pairs.json_key_end);
  }
}

void MarkedCallReader::begin_value(bool is_json) {
  kind_ = {};
  if (!syntax_->pairs.json_key_end.empty()) {
    kind_.raw = !is_json;
  } else if (kinds_ != nullptr) {
    if (const auto known = kinds_->find(key_); known != kinds_->end()) kind_ = known->second;
  }
  arguments_ += arguments_.empty() ? "{\"" : ", \"";
  append_json_string(key_, arguments_);
  arguments_ += kind_.raw ? "\": \"" : "\": ";
  at_value_start_ = true;
  is_json_ = false;
  in_string_ = false;
  escaped_ = false;
  place_ = syntax_->pairs.value_open.empty() ? Place::kValue : Place::kValueOpen;
}

void MarkedCallReader::take_value(char letter) {
  window_ += letter;
  // A JSON string may hold the mark.
  if (!kind_.raw && at_value_start_ && !is_turn_space(letter)) {
    at_value_start_ = false;
    is_json_ = letter == '"' || letter == '{' || letter == '[';
  }
  if (!kind_.raw && is_json_) pass_string(letter);
  const std::string_view end = syntax_->pairs.value_end;
  if (in_string_ || letter != end.back() || !window_.ends_with(end)) return;
  window_.resize(window_.size() - end.size());
  place_ = Place::kPairOrEnd;
  if (kind_.raw) {
    tell_raw(true);
    arguments_ += '"';
  } else {
    const std::string_view padding = syntax_->pairs.padding;
    std::string_view value = window_;
    if (!padding.empty() && value.starts_with(padding)) value.remove_prefix(padding.size());
    if (!padding.empty() && value.ends_with(padding)) value.remove_suffix(padding.size());
    arguments_ += argument_value(value, kind_);
  }
  window_.clear();
}

void MarkedCallReader::tell_raw(bool ends) {
  const std::string_view padding = syntax_->pairs.padding;
  const std::string_view text = window_;
  size_t first = 0;
  size_t last = text.size() - (ends ? 0 : begun_bytes(text, syntax_->pairs.value_end));
  if (last == 0 && !ends) return;
  if (at_value_start_ && !padding.empty() && text.starts_with(padding)) first = padding.size();
  if (!padding.empty() && text.substr(first, last - first).ends_with(padding)) {
    last -= padding.size();
  }
  append_json_string(text.substr(first, last - first), arguments_);
  at_value_start_ = false;
  window_.erase(0, last);
}

void MarkedCallReader::finish() {
  const auto arguments = parse_json(arguments_);
  state_ = arguments && arguments->is_object() ? State::kWhole : State::kBroken;
}

}  // namespace lockstep
