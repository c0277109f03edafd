#include "engine/text/grammar/value_pieces.h"

#include <algorithm>
#include <vector>

#include "engine/text/grammar/json_pieces.h"

namespace lockstep {
namespace {

// Without one character of the mark no text can hold it. This one is the rarest in texts.
const CharacterSet& mark_character() {
  static const CharacterSet kSet = {{'|', '|'}};
  return kSet;
}

// Whether a member's name can be written without quotes: it holds nothing that ends it.
bool is_bare_name(std::string_view name) {
  constexpr std::string_view kEnds = " ,:=(){}[]\"'<>|\\\x7F";
  const auto is_bare = [&](char letter) {
    return static_cast<unsigned char>(letter) >= 0x20 && kEnds.find(letter) == kEnds.npos;
  };
  return !name.empty() && std::ranges::all_of(name, is_bare);
}

}  // namespace

void ValuePieces::enter(std::string_view name) {
  if (!is_pairs()) return;
  path_bytes_.push_back(path_.size());
  if (path_bytes_.size() > 1) path_ += frame_.key_end;
  path_ += name;
}

void ValuePieces::leave() {
  if (!is_pairs()) return;
  path_.resize(path_bytes_.back());
  path_bytes_.pop_back();
}

ExpressionId ValuePieces::any() {
  if (form_ == ValueForm::kJson || is_pairs()) return json_any_value(draft_);
  return draft_.shared("(value of a call)", [&] {
    return draft_.choice(
        {any_object(), any_array(), string(), json_number(draft_), boolean(), null()});
  });
}

ExpressionId ValuePieces::any_object() {
  return draft_.shared("(object of a call)", [&] {
    const ExpressionId member = draft_.sequence({any_name(), assign(false), any()});
    return draft_.sequence(
        {open(false), json_list(draft_, member, 0, GrammarDraft::kUnlimited), close(false)});
  });
}

ExpressionId ValuePieces::any_array() {
  return draft_.shared("(array of a call)", [&] {
    return draft_.sequence({draft_.literal("["),
                            json_list(draft_, any(), 0, GrammarDraft::kUnlimited),
                            draft_.literal("]")});
  });
}

ExpressionId ValuePieces::boolean() {
  const bool is_python = form_ == ValueForm::kPython;
  return draft_.choice(
      {draft_.literal(is_python ? "True" : "true"), draft_.literal(is_python ? "False" : "false")});
}

ExpressionId ValuePieces::null() {
  return draft_.literal(form_ == ValueForm::kPython ? "None" : "null");
}

ExpressionId ValuePieces::quoted(ExpressionId text) {
  const ExpressionId quote = form_ == ValueForm::kMarked ? mark_ : draft_.literal("\"");
  return draft_.sequence({quote, text, quote});
}

ExpressionId ValuePieces::character() {
  if (form_ == ValueForm::kMarked) return draft_.characters(mark_character().complement());
  if (form_ == ValueForm::kPython) return python_string_character(draft_);
  return json_string_character(draft_);
}

ExpressionId ValuePieces::string() {
  if (is_raw()) {
    return draft_.shared("(text of a call)",
                         [&] { return text_without(draft_, frame_.value_end_text); });
  }
  if (form_ == ValueForm::kJson || is_pairs()) return json_string(draft_);
  return draft_.shared("(string of a call)", [&] {
    if (form_ == ValueForm::kMarked) return quoted(text_without(draft_, mark_text_));
    return string(0, GrammarDraft::kUnlimited);
  });
}

ExpressionId ValuePieces::string(uint32_t min, uint32_t max) {
  return quoted(draft_.repeat(character(), min, max));
}

ExpressionId ValuePieces::matching(std::string_view pattern, bool anywhere) {
  const auto form =
      form_ == ValueForm::kMarked ? CharacterForm::kWithoutBar : CharacterForm::kInJsonString;
  return quoted(read_regex(draft_, pattern, {form, anywhere}));
}

ExpressionId ValuePieces::marked(std::string_view text) {
  if (text.find(mark_text_) != std::string_view::npos) return fail(text);
  return quoted(draft_.literal(text));
}

ExpressionId ValuePieces::fail(std::string_view text) {
  draft_.fail("the syntax of the model's calls has no way to write \"{:.100}\"", text);
  return draft_.nothing();
}

ExpressionId ValuePieces::exactly(const Json& value) {
  if (is_raw() && value.is_string()) return draft_.literal(value.get_ref<const std::string&>());
  if (form_ == ValueForm::kJson || is_pairs()) return draft_.literal(value.dump());
  if (value.is_boolean() && form_ == ValueForm::kPython) {
    return draft_.literal(value.get<bool>() ? "True" : "False");
  }
  if (value.is_null()) return null();
  if (value.is_string() && form_ == ValueForm::kMarked) {
    return marked(value.get_ref<const std::string&>());
  }
  if (!value.is_structured()) return draft_.literal(value.dump());
  std::vector<ExpressionId> parts = {draft_.literal(value.is_array() ? "[" : "{")};
  for (const auto& [key, part] : value.items()) {
    if (parts.size() > 1) parts.push_back(json_comma(draft_));
    if (value.is_object()) parts.push_back(draft_.sequence({name(key, false), assign(false)}));
    parts.push_back(exactly(part));
  }
  parts.push_back(draft_.literal(value.is_array() ? "]" : "}"));
  return draft_.sequence(parts);
}

ExpressionId ValuePieces::open(bool keywords) {
  return is_pairs() ? draft_.empty() : draft_.literal(keywords ? "(" : "{");
}

ExpressionId ValuePieces::close(bool keywords) {
  return is_pairs() ? draft_.empty() : draft_.literal(keywords ? ")" : "}");
}

ExpressionId ValuePieces::open_list() {
  return is_pairs() ? draft_.empty() : draft_.literal("[");
}

ExpressionId ValuePieces::close_list() {
  return is_pairs() ? draft_.empty() : draft_.literal("]");
}

ExpressionId ValuePieces::comma() {
  return is_pairs() ? draft_.empty() : json_comma(draft_);
}

ExpressionId ValuePieces::list(ExpressionId part, uint32_t min, uint32_t max) {
  return is_pairs() ? draft_.repeat(part, min, max) : json_list(draft_, part, min, max);
}

ExpressionId ValuePieces::item(ExpressionId value) {
  return is_pairs() ? member(frame_.item_key, value, false) : value;
}

ExpressionId ValuePieces::member(std::string_view name, ExpressionId value, bool keywords) {
  if (!is_pairs()) return draft_.sequence({this->name(name, keywords), assign(keywords), value});
  if (name.empty() || name.front() == '/' || name.find(frame_.key_end) != name.npos ||
      name.size() > frame_.name_bytes_max) {
    return fail(name);
  }
  const ExpressionId key = draft_.literal(std::string(name) + frame_.key_end);
  return draft_.sequence({frame_.open, key, value, frame_.value_end, key});
}

ExpressionId ValuePieces::name(std::string_view name, bool keywords) {
  if (!is_bare(keywords)) return draft_.literal(Json(name).dump());
  if (is_bare_name(name)) return draft_.literal(name);
  return keywords ? fail(name) : marked(name);
}

ExpressionId ValuePieces::any_name() {
  if (form_ == ValueForm::kJson) return json_string(draft_);
  if (form_ == ValueForm::kPython) return string();
  return draft_.repeat(draft_.characters(name_characters(false)), 1, GrammarDraft::kUnlimited);
}

ExpressionId ValuePieces::assign(bool keywords) {
  return keywords ? draft_.literal("=") : json_colon(draft_);
}

CharacterSet ValuePieces::name_characters(bool keywords) const {
  if (is_bare(keywords)) return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return CharacterSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}).complement();
}

}  // namespace lockstep
