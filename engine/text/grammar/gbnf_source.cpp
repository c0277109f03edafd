// GBNF, the notation of llama.cpp's grammars.
#include <map>
#include <string>
#include <vector>

#include "engine/text/grammar/pattern_reader.h"
#include "engine/text/grammar/sources.h"
#include "engine/text/utf8.h"

namespace lockstep {
namespace {

constexpr size_t kRulesMax = 20'000;

bool is_name_character(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9') || letter == '-' || letter == '_';
}

class GbnfReader {
 public:
  GbnfReader(GrammarDraft& draft, std::string_view text) : draft_(draft), in_(draft, text) {}

  ExpressionId read() {
    skip_space(/*lines=*/true);
    while (!in_.failed() && !in_.at_end()) {
      read_rule();
      skip_space(/*lines=*/true);
    }
    if (in_.failed()) return draft_.nothing();
    const auto root = rules_.find("root");
    if (root == rules_.end()) {
      draft_.fail("the rule \"root\" is missing");
      return draft_.nothing();
    }
    return draft_.rule(root->second);
  }

 private:
  void skip_space(bool lines) {
    while (!in_.at_end()) {
      const char next = in_.peek();
      if (next == '#') {
        const size_t end = in_.rest().find_first_of("\r\n");
        in_.skip(end == std::string_view::npos ? in_.rest().size() : end);
      } else if (next == ' ' || next == '\t' || (lines && (next == '\n' || next == '\r'))) {
        in_.skip(1);
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    size_t size = 0;
    while (is_name_character(in_.peek(size))) ++size;
    if (size == 0) in_.fail("the name of a rule is expected");
    const std::string name(in_.rest().substr(0, size));
    in_.skip(size);
    return name;
  }

  RuleId find_rule(const std::string& name) {
    const auto found = rules_.find(name);
    if (found != rules_.end()) return found->second;
    if (rules_.size() >= kRulesMax) in_.fail("there are more than {} rules", kRulesMax);
    return rules_[name] = draft_.add_rule(name);
  }

  void read_rule() {
    const std::string name = read_name();
    skip_space(false);
    if (!in_.failed() && !in_.take("::=")) in_.fail("\"::=\" is expected after \"{:.60}\"", name);
    if (in_.failed()) return;
    skip_space(true);
    const RuleId rule = find_rule(name);
    const ExpressionId body = read_alternatives(/*nested=*/false);
    if (in_.failed()) return;
    if (draft_.body(rule)) in_.fail("the rule \"{:.60}\" is defined twice", name);
    const char next = in_.peek();
    if (next != '\0' && next != '\n' && next != '\r') {
      in_.fail("a line's end is expected after the rule \"{:.60}\"", name);
    }
    draft_.define(rule, body);
  }

  // In parentheses a line's end means nothing; outside it ends the rule, but for beside a "|".
  ExpressionId read_alternatives(bool nested) {
    std::vector<ExpressionId> alternatives = {read_sequence(nested)};
    while (!in_.failed() && take_bar()) {
      skip_space(true);
      alternatives.push_back(read_sequence(nested));
    }
    return draft_.choice(alternatives);
  }

  bool take_bar() {
    const size_t before = in_.position();
    skip_space(true);
    if (in_.take("|")) return true;
    in_.go_back(before);
    return false;
  }

  ExpressionId read_sequence(bool nested) {
    std::vector<ExpressionId> parts;
    while (!in_.failed()) {
      const char next = in_.peek();
      ExpressionId part = draft_.nothing();
      if (next == '"') {
        part = read_literal();
      } else if (next == '[') {
        part = read_class();
      } else if (next == '(') {
        part = read_group();
      } else if (next == '.') {
        in_.skip(1);
        part = draft_.characters(CharacterSet::all());
      } else if (is_name_character(next)) {
        part = draft_.rule(find_rule(read_name()));
      } else {
        break;
      }
      skip_space(nested);
      parts.push_back(read_repetitions(part, nested));
    }
    return draft_.sequence(parts);
  }

  ExpressionId read_repetitions(ExpressionId part, bool nested) {
    while (!in_.failed()) {
      const auto counts = in_.take_quantifier();
      if (!counts) break;
      part = draft_.repeat(part, counts->min, counts->max);
      skip_space(nested);
    }
    return part;
  }

  ExpressionId read_group() {
    in_.skip(1);
    if (++depth_ > draft_.budget().limits().depth) {
      in_.fail("groups are nested more than {} levels deep", draft_.budget().limits().depth);
      return draft_.nothing();
    }
    skip_space(true);
    const ExpressionId body = read_alternatives(/*nested=*/true);
    skip_space(true);
    if (!in_.failed() && !in_.take(")")) in_.fail("\")\" is expected");
    --depth_;
    return body;
  }

  uint32_t read_character() {
    if (!in_.take("\\")) return in_.take_character();
    const uint32_t letter = in_.take_character();
    switch (letter) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return in_.take_hex(2);
      case 'u':
        return checked(in_.take_hex(4));
      case 'U':
        return checked(in_.take_hex(8));
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
        return letter;
      default:
        in_.fail(
            "an unknown escape; known are \\n \\r \\t \\xNN \\uNNNN \\UNNNNNNNN \\\" \\\\ \\[ "
            "\\]");
        return letter;
    }
  }

  uint32_t checked(uint32_t character) {
    if (character > 0x10FFFF || (character >= 0xD800 && character <= 0xDFFF)) {
      in_.fail("{:x} is not a character", character);
    }
    return character;
  }

  ExpressionId read_literal() {
    in_.skip(1);
    std::string text;
    while (!in_.failed() && !in_.take("\"")) {
      if (in_.at_end()) in_.fail("a text has no end");
      const uint32_t character = read_character();
      if (!in_.failed()) append_utf8(character, text);
    }
    return draft_.literal(text);
  }

  ExpressionId read_class() {
    in_.skip(1);
    const bool negated = in_.take("^");
    CharacterSet set;
    while (!in_.failed() && !in_.take("]")) {
      if (in_.at_end()) in_.fail("a character class has no end");
      const uint32_t low = read_character();
      uint32_t high = low;
      if (in_.peek() == '-' && in_.peek(1) != ']') {
        in_.skip(1);
        high = read_character();
        if (low > high) in_.fail("a range of characters goes backwards");
      }
      in_.collect(low, high, set);
    }
    if (in_.failed() || !draft_.budget().look()) return draft_.nothing();
    set.normalize();
    return draft_.characters(negated ? set.complement() : set);
  }

  GrammarDraft& draft_;
  PatternReader in_;
  std::map<std::string, RuleId> rules_;
  size_t depth_ = 0;
};

}  // namespace

ExpressionId read_gbnf(GrammarDraft& draft, std::string_view text) {
  if (!is_valid_utf8(text)) {
    draft.fail("it is not valid UTF-8");
    return draft.nothing();
  }
  return GbnfReader(draft, text).read();
}

}  // namespace lockstep
