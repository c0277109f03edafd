// What a generated text must be: compiled once, by any number of requests at the same time used to
// tell which tokens may come next.
#pragma once

#include <memory>
#include <string>

namespace lockstep {

// What clients constrain an answer with.
struct GrammarSource {
  enum class Kind {
    kJsonObject,  // any JSON object; `text` is empty
    kJsonSchema,  // a JSON text of a schema (draft 2020-12)
    kRegex,   // the whole answer matches it (ECMA-262's syntax without backreferences and looks)
    kChoice,  // a JSON list of strings: one of them
    kGbnf,    // llama.cpp's grammar notation; the rule "root" is the answer
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
};

// Immutable. What one request has matched so far is a state of its own.
class Grammar;

}  // namespace lockstep
