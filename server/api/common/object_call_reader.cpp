#include "server/api/common/object_call_reader.h"

#include <algorithm>
#include <utility>

#include "engine/base/json.h"
#include "server/api/common/text_marks.h"

namespace lockstep {
namespace {

constexpr std::string_view kKeys[] = {"type", "id", "arguments", "parameters"};

}  // namespace

size_t ObjectCallReader::push(std::string_view text) {
  size_t taken = 0;
  const bool had_name = name_.has_value();
  while (taken < text.size() && state_ == State::kOpen && name_.has_value() == had_name) {
    take(text[taken++]);
  }
  return taken;
}

std::string ObjectCallReader::take_rest() {
  return std::exchange(rest_, {});
}

bool ObjectCallReader::end_text() {
  if (state_ == State::kOpen && hidden_end_) give_up();
  return !rest_.empty();
}

std::string ObjectCallReader::take_arguments() {
  if (state_ == State::kWhole && !has_arguments_) {
    has_arguments_ = true;
    return "{}";
  }
  return std::exchange(arguments_, {});
}

void ObjectCallReader::take(char letter) {
  raw_ += letter;
  if (raw_.size() > kBytesMax) state_ = State::kBroken;
  if (literal_) return take_argument(letter);
  checked_ += letter;
  if (place_ == Place::kInValue) return take_value(letter);
  if (place_ == Place::kKey) {
    if (letter == '"') return end_key();
    key_ += letter;
    return;
  }
  if (is_turn_space(letter)) return;
  switch (place_) {
    case Place::kStart:
      place_ = Place::kKeyOrEnd;
      if (letter != '{') state_ = State::kBroken;
      return;
    case Place::kKeyOrEnd:
      if (letter == '}') return end_object();
      key_.clear();
      place_ = Place::kKey;
      if (letter != '"') state_ = State::kBroken;
      return;
    case Place::kColon:
      place_ = Place::kValue;
      if (letter != ':') state_ = State::kBroken;
      return;
    case Place::kValue:
      value_.clear();
      place_ = Place::kInValue;
      if (!is_arguments() || letter != '{') return take_value(letter);
      literal_.emplace(ValueSyntax::kJson, /*arguments=*/true);
      checked_.pop_back();
      return take_argument(letter);
    case Place::kNext:
      if (letter == '}') return end_object();
      place_ = Place::kKeyOrEnd;
      kept_ = checked_.size() - 1;
      if (letter != ',') state_ = State::kBroken;
      return;
    default:
      return;
  }
}

void ObjectCallReader::end_key() {
  place_ = Place::kColon;
  // Other objects are text, and are told so at their first unknown name.
  const bool is_id = !syntax_->id_key.empty() && key_ == syntax_->id_key;
  const bool known = is_name() || is_id || std::ranges::find(kKeys, key_) != std::end(kKeys);
  if (!known) state_ = State::kBroken;
  left_out_ = !keys_.insert(is_arguments() ? "arguments" : key_).second;
}

void ObjectCallReader::take_argument(char letter) {
  std::string json;
  literal_->take(letter, json);
  if (!left_out_) {
    checked_ += json;
    arguments_ += json;
  }
  switch (literal_->state()) {
    case LiteralReader::State::kOpen: {
      const std::string_view mark = without_space(syntax_->close);
      // A single letter is no mark to go by.
      if (!hidden_end_ && mark.size() > 1 && literal_->in_string() && raw_.ends_with(mark)) {
        hidden_end_ = raw_.size();
      }
      return;
    }
    case LiteralReader::State::kBroken:
      return give_up();
    case LiteralReader::State::kWhole:
      literal_.reset();
      hidden_end_.reset();
      end_member();
  }
}

// The arguments are no JSON: the call ended, broken, at the mark that seemed to be within a text.
void ObjectCallReader::give_up() {
  state_ = State::kBroken;
  if (!hidden_end_) return;
  rest_ = raw_.substr(*hidden_end_);
  raw_.resize(*hidden_end_);
}

void ObjectCallReader::take_value(char letter) {
  const bool first = value_.empty() && depth_ == 0 && !in_string_;
  if (!in_string_ && depth_ == 0 && !first && (letter == ',' || letter == '}')) {
    checked_.pop_back();
    end_value();  // of a number, true, false or null
    if (state_ == State::kOpen) {
      raw_.pop_back();
      take(letter);
    }
    return;
  }
  value_ += letter;
  if (in_string_) {
    if (static_cast<unsigned char>(letter) < 0x20) state_ = State::kBroken;  // no JSON
    if (!escaped_ && letter == '"') in_string_ = false;
    escaped_ = !escaped_ && letter == '\\';
    if (!in_string_ && depth_ == 0) end_value();
    return;
  }
  if (letter == '"') in_string_ = true;
  if (letter == '{' || letter == '[') ++depth_;
  if (depth_ > LiteralReader::kDepthMax) state_ = State::kBroken;
  if (letter == '}' || letter == ']') {
    if (depth_ > 0) --depth_;
    if (depth_ == 0) end_value();
  }
}

void ObjectCallReader::end_member() {
  place_ = Place::kNext;
  has_arguments_ = has_arguments_ || is_arguments();
  if (left_out_) checked_.resize(kept_);
}

void ObjectCallReader::end_value() {
  end_member();
  if (!is_name() && (left_out_ || !is_arguments())) return;
  const auto value = parse_json(value_);
  if (left_out_) {
    // Nobody can tell which of two functions is meant.
    const bool is_same =
        value && value->is_string() && value->get_ref<const std::string&>() == *name_;
    if (!is_same) state_ = State::kBroken;
    return;
  }
  if (value && value->is_string() && is_name()) {
    name_ = value->get<std::string>();
    return;
  }
  // Some models write the arguments as a string that holds the object.
  if (value && value->is_string() && is_arguments()) {
    const auto inner = parse_json(value->get_ref<const std::string&>());
    if (inner && inner->is_object()) {
      arguments_ += value->get_ref<const std::string&>();
      return;
    }
  }
  if (value && value->is_null() && is_arguments()) {
    arguments_ += "{}";
    return;
  }
  state_ = State::kBroken;
}

void ObjectCallReader::end_object() {
  const bool sound = name_ && parse_json(checked_).has_value();
  state_ = sound ? State::kWhole : State::kBroken;
}

}  // namespace lockstep
