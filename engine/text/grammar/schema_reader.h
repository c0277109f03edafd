// A JSON schema (draft 2020-12) as a grammar of the texts of the values that it admits, as JSON or
// in another form of values, or of some of them:
// every text of the grammar is valid, not every valid text is in the grammar. Members come in the
// order of "properties"; an object with "properties" has no others unless "additionalProperties"
// asks for them. What would be needed for validity and is not supported is refused, with its place.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/grammar/sources.h"
#include "engine/text/grammar/value_pieces.h"

namespace lockstep {

class SchemaReader {
 public:
  // `root` must outlive this: references are resolved in it.
  SchemaReader(GrammarDraft& draft, const Json& root, std::string_view pointer)
      : SchemaReader(draft, root, pointer, ValuePieces(draft)) {}
  SchemaReader(GrammarDraft& draft, const Json& root, std::string_view pointer, ValuePieces pieces)
      : draft_(draft), root_(root), root_pointer_(pointer), pieces_(std::move(pieces)) {}

  using Pointer = std::string;  // a JSON pointer, for messages

  ExpressionId read();
  // The root as all arguments of a call, an object.
  ExpressionId read_arguments();

  // A schema within the root. Its references have no rules before read_references().
  ExpressionId read(const Json& schema, const Pointer& pointer);
  void read_references();

 private:
  // schema_reader.cpp
  ExpressionId read_object_of_keywords(const Json& schema, const Pointer& pointer);
  ExpressionId read_reference(const std::string& reference, const Pointer& pointer);
  ExpressionId read_alternatives(const Json& schema, const std::string& keyword,
                                 const Pointer& pointer);
  ExpressionId read_types(const Json& schema, const Pointer& pointer);
  ExpressionId read_type(const Json& schema, std::string_view type, const Pointer& pointer);
  ExpressionId read_values(const Json& schema, const Json& values, const Pointer& pointer);
  // Keeps what was merged for as long as this reads, and counts it.
  const Json& keep(Json schema);
  void check_keywords(const Json& schema, const Pointer& pointer);
  const Json* resolve(const std::string& reference, const Pointer& pointer);

  // schema_merge.cpp
  // One schema that admits what both admit, without "$ref" and "allOf" of its own.
  Json merge(const Json& left, const Json& right, const Pointer& pointer);
  void merge_keyword(Json& into, const std::string& name, const Json& value,
                     const Pointer& pointer);
  void check_additional(const Json& one, const Json& other, const Pointer& pointer);
  Json flatten(const Json& schema, const Pointer& pointer);
  // Whether no value can be valid for both; false if that is not known.
  bool are_disjoint(const Json& left, const Json& right, const Pointer& pointer);
  bool have_disjoint_members(const Json& left, const Json& right, const Pointer& pointer);

  // schema_containers.cpp
  struct Member {
    ExpressionId text = 0;  // name, colon and value
    bool required = false;
  };
  // `keywords`: as ValuePieces has them.
  ExpressionId read_object(const Json& schema, const Pointer& pointer, bool keywords = false);
  ExpressionId read_map(const Json& schema, ExpressionId value, const Pointer& pointer,
                        bool keywords);
  bool check_counts(const Json& schema, size_t declared, size_t required, bool closed,
                    const Pointer& pointer);
  ExpressionId join_members(const std::vector<Member>& members, ExpressionId extra, bool open);
  ExpressionId name_but(const std::vector<std::string>& names, bool keywords);
  ExpressionId read_array(const Json& schema, const Pointer& pointer);

  // schema_scalars.cpp
  ExpressionId read_string(const Json& schema, const Pointer& pointer);
  ExpressionId read_format(const Json& schema, const std::string& format, uint32_t min,
                           uint32_t max, const Pointer& pointer);
  ExpressionId read_number(const Json& schema, bool integer, const Pointer& pointer);

  // A keyword's value, if it is there and of the kind; otherwise the draft fails.
  const Json* find(const Json& schema, std::string_view name) const;
  uint32_t read_count(const Json& schema, std::string_view name, uint32_t fallback,
                      const Pointer& pointer);

  template <typename... Arguments>
  void fail(const Pointer& pointer, fmt::format_string<Arguments...> format,
            Arguments&&... arguments) {
    draft_.fail("at \"{:.200}\": {}", pointer,
                fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  GrammarDraft& draft_;
  const Json& root_;
  Pointer root_pointer_;
  ValuePieces pieces_;
  std::deque<Json> made_;  // schemas that were merged; referred to while being read
  std::map<std::string, RuleId> references_;
  std::vector<std::string> unread_;  // references whose rules have no body yet
  std::set<const Json*> inlined_;    // what references lead to, while it is read in their place
  std::set<const Json*> recursive_;  // those of them that were found to lead back to themselves
  size_t depth_ = 0;
};

// Keywords that say more about an object than its members, each by itself, can hold to.
const std::string_view* find_joining_keyword(const Json& schema);

// A member's name as a step of a JSON pointer.
std::string pointer_step(std::string_view name);

// About what a copy takes.
size_t count_bytes(const Json& value);

// The types that a schema without references admits, as bits in the order of kJsonTypes; all of
// them where nothing says.
inline constexpr std::string_view kJsonTypes[] = {"object",  "array",   "string", "number",
                                                  "integer", "boolean", "null"};
unsigned types_of(const Json& schema);
// The types of a value; an integer is a number as well.
unsigned types_of_value(const Json& value);

}  // namespace lockstep
