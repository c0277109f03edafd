// Objects and arrays of a schema.
#include <algorithm>
#include <map>
#include <set>

#include "engine/text/grammar/json_pieces.h"
#include "engine/text/grammar/schema_reader.h"
#include "engine/text/utf8.h"

namespace lockstep {
namespace {

// Names as a tree of characters, in rules of their own: names may be long.
class OtherNames {
 public:
  // `plain`: the characters that a name may hold as they are. Without a quote no name is empty.
  OtherNames(GrammarDraft& draft, const std::vector<std::string>& names, CharacterSet plain,
             std::string_view quote)
      : draft_(draft), plain_(std::move(plain)), quote_(draft.literal(quote)) {
    rest_ = draft_.add_rule("(rest of a name)");
    draft_.define(rest_, draft_.sequence(
                             {draft_.repeat(draft_.characters(plain_), 0, GrammarDraft::kUnlimited),
                              quote_}));
    nodes_.emplace_back(draft_.add_rule("(another name)"));
    nodes_.front().is_name = quote.empty();
    for (const std::string& name : names) add(name);
  }

  ExpressionId make() {
    for (const Node& node : nodes_) {
      std::vector<ExpressionId> parts;
      if (!node.is_name) parts.push_back(quote_);
      CharacterSet others = plain_;
      CharacterSet known;
      for (const auto& [character, child] : node.children) {
        known.add(character, character);
        std::string text;
        append_utf8(character, text);
        parts.push_back(draft_.sequence({draft_.literal(text), draft_.rule(nodes_[child].rule)}));
      }
      known.normalize();
      parts.push_back(
          draft_.sequence({draft_.characters(others.without(known)), draft_.rule(rest_)}));
      draft_.define(node.rule, draft_.choice(parts));
      if (draft_.failed()) break;
    }
    return draft_.sequence({quote_, draft_.rule(nodes_[0].rule)});
  }

 private:
  struct Node {
    explicit Node(RuleId id) : rule(id) {}
    RuleId rule;
    bool is_name = false;
    std::map<uint32_t, size_t> children;
  };

  void add(std::string_view name) {
    size_t at = 0;
    while (!name.empty() && !draft_.failed()) {
      const DecodedCharacter character = decode_utf8(name);
      // Such a name would be escaped: no other name is.
      if (!plain_.contains(character.code_point)) return;
      name.remove_prefix(character.size_bytes);
      const auto [child, added] = nodes_[at].children.try_emplace(character.code_point, 0);
      if (added) {
        child->second = nodes_.size();
        const size_t index = nodes_.size();
        draft_.budget().take(sizeof(Node));
        nodes_.emplace_back(draft_.add_rule("(another name)"));
        at = index;
      } else {
        at = child->second;
      }
    }
    nodes_[at].is_name = true;
  }

  GrammarDraft& draft_;
  CharacterSet plain_;
  ExpressionId quote_;
  RuleId rest_ = 0;
  std::vector<Node> nodes_;
};

}  // namespace

ExpressionId SchemaReader::name_but(const std::vector<std::string>& names, bool keywords) {
  return OtherNames(draft_, names, pieces_.name_characters(keywords), pieces_.name_quote(keywords))
      .make();
}

ExpressionId SchemaReader::read_object(const Json& schema, const Pointer& pointer, bool keywords) {
  const Json* properties = find(schema, "properties");
  if (properties != nullptr && !properties->is_object()) {
    fail(pointer + "/properties", "it must be an object");
    return draft_.nothing();
  }
  std::vector<std::string> names;
  std::set<std::string> required;
  if (const Json* list = find(schema, "required")) {
    for (const Json& name : list->is_array() ? *list : Json::array({1})) {
      if (name.is_string()) required.insert(name.get<std::string>());
      if (!name.is_string()) fail(pointer + "/required", "it must be a list of strings");
    }
  }
  const Json* additional = find(schema, "additionalProperties");
  const bool lists = properties != nullptr && !properties->empty();
  const bool in_pairs = pieces_.form() == ValueForm::kPairs;
  if (in_pairs && !lists && required.empty() && !keywords) {
    pieces_.set_form(ValueForm::kJson);
    const ExpressionId json = read_object(schema, pointer);
    pieces_.set_form(ValueForm::kPairs);
    return json;
  }
  // Pairs have no way to write names that are not known.
  const bool open = !in_pairs && (additional != nullptr ? *additional != false : !lists);
  // In pairs, values of names that are not listed are JSON: no path leads to them.
  const auto read_additional = [&] {
    if (additional == nullptr) return pieces_.any();
    if (in_pairs) pieces_.set_form(ValueForm::kJson);
    const ExpressionId value = read(*additional, pointer + "/additionalProperties");
    if (in_pairs) pieces_.set_form(ValueForm::kPairs);
    return value;
  };
  const ExpressionId extra_value =
      draft_.as_rule(read_additional(), pointer + "/additionalProperties");
  std::vector<Member> members;
  const auto add = [&](const std::string& name, ExpressionId value) {
    const bool needed = required.erase(name) > 0;
    members.push_back({pieces_.member(name, value, keywords), needed});
    names.push_back(name);
  };
  if (lists) {
    for (const auto& [name, value] : properties->items()) {
      if (draft_.failed()) return draft_.nothing();
      const Pointer place = pointer + "/properties" + pointer_step(name);
      pieces_.enter(name);
      const ExpressionId text = draft_.as_rule(read(value, place), place);
      pieces_.leave();
      add(name, text);
    }
  }
  // Required but not listed: of what additional ones are.
  for (const std::string& name : std::set<std::string>(required)) add(name, extra_value);
  if (members.empty() && open) return read_map(schema, extra_value, pointer, keywords);
  const auto needed = static_cast<size_t>(std::ranges::count_if(members, &Member::required));
  if (!check_counts(schema, members.size(), needed, !open, pointer)) return draft_.nothing();
  const ExpressionId extra =
      open ? draft_.sequence({name_but(names, keywords), pieces_.assign(keywords), extra_value})
           : draft_.nothing();
  return draft_.sequence(
      {pieces_.open(keywords), join_members(members, extra, open), pieces_.close(keywords)});
}

// Any names. The same name may come twice and counts once then.
ExpressionId SchemaReader::read_map(const Json& schema, ExpressionId value, const Pointer& pointer,
                                    bool keywords) {
  const uint32_t min = read_count(schema, "minProperties", 0, pointer);
  const uint32_t max = read_count(schema, "maxProperties", GrammarDraft::kUnlimited, pointer);
  if (min > 1) fail(pointer + "/minProperties", "more than 1 is not supported");
  if (min > max) return draft_.nothing();
  const ExpressionId name = keywords ? name_but({}, keywords) : pieces_.any_name();
  const ExpressionId member = draft_.as_rule(
      draft_.sequence({name, pieces_.assign(keywords), value}), pointer + " (member)");
  return draft_.sequence(
      {pieces_.open(keywords), pieces_.list(member, min, max), pieces_.close(keywords)});
}

bool SchemaReader::check_counts(const Json& schema, size_t declared, size_t required, bool closed,
                                const Pointer& pointer) {
  const uint32_t min = read_count(schema, "minProperties", 0, pointer);
  const uint32_t max = read_count(schema, "maxProperties", GrammarDraft::kUnlimited, pointer);
  if (min > required) {
    fail(pointer + "/minProperties", "more than the {} required properties is not supported",
         required);
  }
  if (max != GrammarDraft::kUnlimited && (!closed || max < declared)) {
    fail(pointer + "/maxProperties",
         "fewer than the {} properties, or additional ones beside it, are not supported", declared);
  }
  return !draft_.failed();
}

// Members in their order, those that are not required left out at will, and then extra ones. While
// nothing has come yet no comma does, so what may follow a first member is a rule of its own.
ExpressionId SchemaReader::join_members(const std::vector<Member>& members, ExpressionId extra,
                                        bool open) {
  const ExpressionId comma = pieces_.comma();
  const ExpressionId extras =
      open ? draft_.repeat(draft_.sequence({comma, extra}), 0, GrammarDraft::kUnlimited)
           : draft_.empty();
  const auto first_required =
      static_cast<size_t>(std::ranges::find_if(members, &Member::required) - members.begin());
  const auto following = [&](const Member& member) {
    const ExpressionId text = draft_.sequence({comma, member.text});
    return member.required ? text : draft_.optional(text);
  };
  const size_t straight = std::min(first_required + 1, members.size());
  std::vector<ExpressionId> rest;
  for (size_t index = straight; index < members.size(); ++index) {
    rest.push_back(following(members[index]));
  }
  rest.push_back(extras);
  ExpressionId after = draft_.sequence(rest);
  std::vector<ExpressionId> beginnings;
  if (first_required == members.size()) {
    if (open) beginnings.push_back(draft_.sequence({extra, extras}));
    beginnings.push_back(draft_.empty());
  }
  for (size_t index = straight; index-- > 0;) {
    if (draft_.failed()) return draft_.nothing();
    if (first_required > 0) after = draft_.as_rule(after, "(members)");
    beginnings.push_back(draft_.sequence({members[index].text, after}));
    after = draft_.sequence({following(members[index]), after});
  }
  return draft_.choice(beginnings);
}

ExpressionId SchemaReader::read_array(const Json& schema, const Pointer& pointer) {
  const Json* prefix = find(schema, "prefixItems");
  const Json* items = find(schema, "items");
  if (prefix != nullptr && !prefix->is_array()) {
    fail(pointer + "/prefixItems", "it must be a list");
    return draft_.nothing();
  }
  if (items != nullptr && items->is_array()) {
    fail(pointer + "/items", "a list of schemas is not supported; use prefixItems");
    return draft_.nothing();
  }
  uint32_t min = read_count(schema, "minItems", 0, pointer);
  uint32_t max = read_count(schema, "maxItems", GrammarDraft::kUnlimited, pointer);
  if (draft_.failed() || min > max) return draft_.nothing();
  const auto listed = static_cast<uint32_t>(prefix != nullptr ? prefix->size() : 0);
  const uint32_t fixed = std::min(listed, max);
  // Without "items" nothing comes behind the listed ones unless it must.
  if (items == nullptr && fixed > 0 && min <= fixed) max = fixed;
  if (items != nullptr && *items == false) max = std::min(max, fixed);
  if (min > max) return draft_.nothing();
  std::vector<ExpressionId> parts = {pieces_.open_list()};
  const auto read_item = [&](const Json& item, const Pointer& place) {
    pieces_.enter_item();
    const ExpressionId value = read(item, place);
    pieces_.leave();
    return pieces_.item(value);
  };
  for (uint32_t index = 0; index < fixed && !draft_.failed(); ++index) {
    if (index > 0) parts.push_back(pieces_.comma());
    parts.push_back(read_item((*prefix)[index], fmt::format("{}/prefixItems/{}", pointer, index)));
  }
  if (max > fixed) {
    static const Json kAnything = true;
    const ExpressionId item = draft_.as_rule(
        read_item(items != nullptr ? *items : kAnything, pointer + "/items"), pointer + "/items");
    min = std::max(min, fixed);
    const uint32_t most = max == GrammarDraft::kUnlimited ? max : max - fixed;
    parts.push_back(
        fixed == 0 ? pieces_.list(item, min, max)
                   : draft_.repeat(draft_.sequence({pieces_.comma(), item}), min - fixed, most));
  }
  parts.push_back(pieces_.close_list());
  return draft_.sequence(parts);
}

}  // namespace lockstep
