// Values as a grammar writes them: as JSON, or in the syntax in which a family of models writes the
// arguments of calls.
#pragma once

#include <string>
#include <string_view>
#include <utility>

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
};

// A draft has one form beside JSON: rules are shared by their names.
class ValuePieces {
 public:
  // `mark` is the expression of the mark of kMarked, `mark_text` its text. The draft outlives this.
  explicit ValuePieces(GrammarDraft& draft, ValueForm form = ValueForm::kJson,
                       ExpressionId mark = 0, std::string mark_text = "")
      : draft_(draft), form_(form), mark_(mark), mark_text_(std::move(mark_text)) {}

  ValueForm form() const { return form_; }

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
  ExpressionId open(bool keywords) { return draft_.literal(keywords ? "(" : "{"); }
  ExpressionId close(bool keywords) { return draft_.literal(keywords ? ")" : "}"); }
  ExpressionId name(std::string_view name, bool keywords);
  ExpressionId any_name();
  ExpressionId assign(bool keywords);  // between name and value

  // The characters of a member's name that has no quotes, or within them.
  CharacterSet name_characters(bool keywords) const;
  // Around a member's name; empty: none.
  std::string_view name_quote(bool keywords) const { return is_bare(keywords) ? "" : "\""; }

 private:
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
};

}  // namespace lockstep
