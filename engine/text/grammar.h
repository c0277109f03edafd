// The grammar of a generated text: compiled once, used by any number of requests at the same time
// to tell which tokens may come next. grammar/grammar_matcher.h is one request's state in it.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace lockstep {

// A client's constraint of an answer.
struct GrammarSource {
  enum class Kind {
    kJsonObject,  // any JSON object; `text` is empty
    kJsonSchema,  // a JSON text of a schema (draft 2020-12)
    kRegex,   // the whole answer matches it (ECMA-262's syntax without backreferences and looks)
    kChoice,  // a JSON list of strings: one of them
    kGbnf,    // llama.cpp's grammar notation; the rule "root" is the answer
    // Parts put together, for answers that hold JSON within a frame (tool calls). A JSON text of a
    // part, which is one of
    //   {"literal": "text"}           exactly this text
    //   {"schema": SCHEMA}            a JSON value of the schema
    //   {"regex": "pattern"}          a text that matches as a whole
    //   {"token": 5}                  this control token
    //   {"until": "mark"}             any text in which the mark does not stand
    //   {"pairs": SCHEMA, …}          an object's members as pairs between marks (pairs_source.cpp)
    //   {"arguments": SCHEMA, "values": "json" or "python"}
    //                                 a call's arguments in a syntax of values (value_pieces.h);
    //                                 or "marked", with "quote": part, "quote_text": "text"
    //   {"any_of": [part, …]}         one of them
    //   {"repeat": part, "min": 1, "max": 16, "separator": "text"}  (0, no limit and "" if left
    //   out) [part, …]                     one after the other
    // References in a schema are resolved within that schema.
    kTemplate,
  };
  Kind kind = Kind::kJsonObject;
  std::string text;

  bool operator==(const GrammarSource&) const = default;
};

// The budget of one compilation; more is refused with kInvalidInput, never tried. Time is checked
// between steps that are short; bytes are those of the compiler's own tables, counted as they grow.
struct GrammarLimits {
  std::chrono::milliseconds time{250};
  size_t bytes = size_t{64} << 20U;
  size_t source_bytes = size_t{1} << 20U;
  size_t depth = 64;  // of JSON in a schema, of groups in a pattern or a rule
};

// Immutable but for a memory of the masks that were computed. Any thread.
class Grammar;

}  // namespace lockstep
