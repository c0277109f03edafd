// Values as a grammar writes them: as JSON, or in the syntax in which a family of models writes the
// arguments of calls.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/text/grammar/character_set.h"
#include "engine/text/grammar/draft.h"
#include "engine/text/grammar/sources.h"

namespace lockstep {

enum class ValueForm {
  kJson,
  // Python's literals; the members of all arguments of a call are keywords: (city="Bern", days=1).
  // Texts are in double quotes, with those of JSON's escapes that Python has.
  kPython,
  // Texts are as they are, between marks, and members without quotes where that can be:
  // {city:"Bern",days:1} with the mark for each quote. No text holds the mark.
  kMarked,
  // An object is a pair of marks around each member, a list around each item, as in XML:
  // <city>Bern</city><days><item>1</item></days>. Texts are as they are, or, where that would not
  // tell them from other values, JSON. So are objects of which no member is known.
  kPairs,
};

// The frame of a member in ValueForm::kPairs: `open`, its name, `key_end`, its value,
// `value_end`, its name again and `key_end`.
struct PairFrame {
  ExpressionId open = 0;
  ExpressionId value_end = 0;
  std::string key_end = {};
  std::string value_end_text = {};  // which no text holds
  std::string item_key = {};        // the name of each item of a list
  size_t name_bytes_max = 0;
  // The values that are texts as they are: the names that lead to each, with key_end between them.
  std::set<std::string> raw = {};
};

// A draft has one form beside JSON: rules are shared by their names.
class ValuePieces {
 public:
  // `mark` is the expression of the mark of kMarked, `mark_text` its text. The draft outlives this.
  explicit ValuePieces(GrammarDraft& draft, ValueForm form = ValueForm::kJson,
                       ExpressionId mark = 0, std::string mark_text = "")
      : draft_(draft), form_(form), mark_(mark), mark_text_(std::move(mark_text)) {}

  ValuePieces(GrammarDraft& draft, PairFrame frame)
      : draft_(draft), form_(ValueForm::kPairs), frame_(std::move(frame)) {}

  ValueForm form() const { return form_; }
  // From now on; the one before it comes back.
  ValueForm set_form(ValueForm form) { return std::exchange(form_, form); }

  // The pieces are of the value of this member until leave(); needed for kPairs.
  void enter(std::string_view name);
  void enter_item() { enter(frame_.item_key); }
  void leave();

  ExpressionId any();
  ExpressionId boolean();
  ExpressionId null();
  ExpressionId string();
  ExpressionId string(uint32_t min, uint32_t max);  // of so many characters
  // A text that matches; as a whole, or `anywhere`.
  ExpressionId matching(std::string_view pattern, bool anywhere);
  // Exactly this value. The draft fails where the form cannot write it.
  ExpressionId exactly(const Json& value);

  // Parts of an object; `keywords`: the arguments of a call in kPython.
  ExpressionId open(bool keywords);
  ExpressionId close(bool keywords);
  ExpressionId member(std::string_view name, ExpressionId value, bool keywords);
  ExpressionId any_name();
  ExpressionId assign(bool keywords);  // between name and value
  ExpressionId comma();                // between members and items

  // Parts of a list.
  ExpressionId open_list();
  ExpressionId close_list();
  ExpressionId item(ExpressionId value);
  ExpressionId list(ExpressionId part, uint32_t min, uint32_t max);  // of items or members

  // The characters of a member's name that has no quotes, or within them.
  CharacterSet name_characters(bool keywords) const;
  // Around a member's name; empty: none.
  std::string_view name_quote(bool keywords) const { return is_bare(keywords) ? "" : "\""; }

 private:
  bool is_pairs() const { return form_ == ValueForm::kPairs; }
  bool is_raw() const { return is_pairs() && frame_.raw.contains(path_); }
  ExpressionId name(std::string_view name, bool keywords);
  bool is_bare(bool keywords) const { return keywords || form_ == ValueForm::kMarked; }
  ExpressionId marked(std::string_view text);  // exactly this one, between marks
  ExpressionId fail(std::string_view text);    // that cannot be written
  ExpressionId any_object();
  ExpressionId any_array();
  ExpressionId quoted(ExpressionId text);
  ExpressionId character();

  GrammarDraft& draft_;
  ValueForm form_;
  ExpressionId mark_;
  std::string mark_text_;
  PairFrame frame_;
  std::string path_;                // of the value that is being read
  std::vector<size_t> path_bytes_;  // of the path to each value around it
};

}  // namespace lockstep
