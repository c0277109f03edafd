// The JSON types that schemas admit, as bits, and the schemas that they refer to. Many references
// may lead to one schema: each is read once, so that the work grows with the text of all of them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <unordered_map>

#include "engine/base/json.h"

namespace lockstep {

// The bits of a JSON type by its name; all of them for a name of none.
unsigned type_bits(std::string_view name);

unsigned type_of_value(const Json& value);

// The schemas of a keyword that lists some; none where it is not there.
std::span<const Json> listed(const Json& schema, std::string_view name);

// For one thread.
class SchemaTypes {
 public:
  // References lead into `root`. It outlives this, does not change, and holds all schemas that the
  // functions below are asked for.
  explicit SchemaTypes(const Json& root);

  // All types where the schema does not say: by a reference, or not at all.
  unsigned of(const Json& schema);

  // The same with what the schemas refer to that it lists: "allOf", "anyOf", "oneOf".
  unsigned with_references(const Json& schema);

  // The schema that a schema refers to, if it does nothing else: by "$ref", or as the only one of
  // "allOf", where those stand that may have notes beside a reference. Null otherwise.
  const Json* referred_by(const Json& schema);

  // How often of() was asked, by itself as well: its work.
  size_t visits() const { return visits_; }

 private:
  // But for what "allOf" says, of an object. Recursion is bounded by the depth of the JSON text.
  unsigned read(const Json& schema);

  const Json& root_;
  std::unordered_map<const Json*, unsigned> known_;
  std::unordered_map<const Json*, const Json*> referred_;
  size_t visits_ = 0;
};

}  // namespace lockstep
