// Regular expressions in ECMA-262's syntax, but for what no automaton can do.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/text/grammar/json_pieces.h"
#include "engine/text/grammar/pattern_reader.h"
#include "engine/text/grammar/sources.h"
#include "engine/text/utf8.h"

namespace lockstep {
namespace {

const CharacterSet kDigits = {{'0', '9'}};
const CharacterSet kWordCharacters = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// The spaces that all dialects agree on; and, for what \S must not match, those of any of them.
const CharacterSet kSpaces = {{'\t', '\r'}, {' ', ' '}};
const CharacterSet kAllSpaces = {{'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},
                                 {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                 {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                 {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharacterSet kNoDigits = kDigits.complement();
const CharacterSet kNoWordCharacters = kWordCharacters.complement();
const CharacterSet kNoSpaces = kAllSpaces.complement();
const CharacterSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class RegexReader {
 public:
  RegexReader(GrammarDraft& draft, std::string_view pattern, const RegexOptions& options)
      : draft_(draft), options_(options), in_(draft, pattern) {}

  ExpressionId read() {
    std::vector<ExpressionId> alternatives;
    do {
      alternatives.push_back(read_whole_alternative());
    } while (!in_.failed() && in_.take("|"));
    if (!in_.failed() && !in_.at_end()) in_.fail("\")\" without \"(\"");
    return draft_.choice(alternatives);
  }

 private:
  ExpressionId characters(const CharacterSet& set) {
    if (options_.form == CharacterForm::kPlain) return draft_.characters(set);
    if (options_.form == CharacterForm::kInJsonString) return json_characters(draft_, set);
    return draft_.characters(set.without({{'|', '|'}}));
  }

  ExpressionId anything() {
    return draft_.repeat(characters(CharacterSet::all()), 0, GrammarDraft::kUnlimited);
  }

  // An alternative of the whole pattern, with its anchors.
  ExpressionId read_whole_alternative() {
    bool at_start = false;
    while (in_.take("^")) at_start = true;
    if (at_start && in_.at_quantifier()) in_.fail("there is nothing to repeat");
    std::vector<ExpressionId> parts;
    if (!at_start && options_.anywhere) parts.push_back(anything());
    parts.push_back(read_sequence());
    bool at_end = false;
    while (in_.take("$")) at_end = true;
    if (at_end && in_.at_quantifier()) in_.fail("there is nothing to repeat");
    if (at_end && !in_.at_end() && in_.peek() != '|') {
      in_.fail("\"$\" is only supported at the end of the pattern or of an alternative");
    }
    if (!at_end && options_.anywhere) parts.push_back(anything());
    return draft_.sequence(parts);
  }

  ExpressionId read_sequence() {
    std::vector<ExpressionId> parts;
    while (!in_.failed() && !in_.at_end()) {
      const char next = in_.peek();
      if (next == '|' || next == ')' || next == '$') break;
      parts.push_back(read_quantified(read_atom()));
    }
    return draft_.sequence(parts);
  }

  ExpressionId read_quantified(ExpressionId atom) {
    if (in_.failed()) return atom;
    const auto counts = in_.take_quantifier("; write \\{ for the character");
    if (!counts) return atom;
    in_.take("?");  // a lazy one matches the same texts
    if (in_.at_quantifier()) in_.fail("there is nothing to repeat");
    return draft_.repeat(atom, counts->min, counts->max);
  }

  ExpressionId read_atom() {
    if (in_.take("(")) return read_group();
    if (in_.take("[")) return characters(read_class());
    if (in_.take(".")) return characters(kLineEnds.complement());
    if (in_.at_quantifier()) {
      in_.fail("there is nothing to repeat");
      return draft_.nothing();
    }
    if (in_.peek() == '^') {
      in_.fail("\"^\" is only supported at the start of the pattern or of an alternative");
      return draft_.nothing();
    }
    if (in_.peek() == ']' || in_.peek() == '}') {
      in_.fail("write \\{} for the character", in_.peek());
      return draft_.nothing();
    }
    if (in_.take("\\")) return characters(read_escape(/*in_class=*/false));
    const uint32_t character = in_.take_character();
    return characters({{character, character}});
  }

  ExpressionId read_group() {
    if (in_.take("?")) {
      const bool names = in_.peek() == '<' && in_.peek(1) != '=' && in_.peek(1) != '!';
      if (names) {
        const size_t end = in_.rest().find('>');
        if (end == std::string_view::npos) {
          in_.fail("the group's name has no end");
          return draft_.nothing();
        }
        in_.skip(end + 1);
      } else if (!in_.take(":")) {
        in_.fail(
            "only groups that begin with \"(\", \"(?:\" or \"(?<name>\" are supported: no "
            "look-ahead, look-behind or flags");
        return draft_.nothing();
      }
    }
    if (++depth_ > draft_.budget().limits().depth) {
      in_.fail("groups are nested more than {} levels deep", draft_.budget().limits().depth);
      return draft_.nothing();
    }
    std::vector<ExpressionId> alternatives;
    do {
      alternatives.push_back(read_sequence());
      if (in_.peek() == '$') in_.fail("\"$\" is not supported within a group");
    } while (!in_.failed() && in_.take("|"));
    if (!in_.failed() && !in_.take(")")) in_.fail("a group has no end");
    --depth_;
    return draft_.choice(alternatives);
  }

  // From behind the bracket.
  CharacterSet read_class() {
    const bool negated = in_.take("^");
    CharacterSet set;
    while (!in_.failed() && !in_.take("]")) {
      if (in_.at_end()) {
        in_.fail("a character class has no end");
        break;
      }
      const CharacterSet low = read_class_atom();
      const bool range = in_.peek() == '-' && in_.peek(1) != ']' && in_.peek(1) != '\0';
      if (!range) {
        in_.collect(low, set);
        continue;
      }
      in_.skip(1);
      const CharacterSet high = read_class_atom();
      if (in_.failed()) break;
      if (!is_single(low) || !is_single(high)) {  // beside \w and its like it stands for itself
        in_.collect(low, set);
        in_.collect('-', '-', set);
        in_.collect(high, set);
        continue;
      }
      if (low.ranges()[0].low > high.ranges()[0].low) {
        in_.fail("a range in a character class must go from a character to a later one");
        break;
      }
      in_.collect(low.ranges()[0].low, high.ranges()[0].low, set);
    }
    if (in_.failed() || !draft_.budget().look()) return set;
    set.normalize();
    if (negated) set = set.complement();
    if (set.empty()) in_.fail("a character class matches no character");
    return set;
  }

  static bool is_single(const CharacterSet& set) {
    return set.ranges().size() == 1 && set.ranges()[0].low == set.ranges()[0].high;
  }

  CharacterSet read_class_atom() {
    if (in_.take("\\")) return read_escape(/*in_class=*/true);
    const uint32_t character = in_.take_character();
    CharacterSet set;
    set.add(character, character);
    return set;
  }

  static CharacterSet one(uint32_t character) {
    CharacterSet set;
    set.add(character, character);
    return set;
  }

  // From behind the backslash.
  CharacterSet read_escape(bool in_class) {
    const uint32_t letter = in_.take_character();
    switch (letter) {
      case 'd':
        return kDigits;
      case 'D':
        return kNoDigits;
      case 'w':
        return kWordCharacters;
      case 'W':
        return kNoWordCharacters;
      case 's':
        return kSpaces;
      case 'S':
        return kNoSpaces;
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(in_.take_hex(2));
      case 'u':
        return one(read_unicode_escape());
      case 'b':
        if (in_class) return one('\b');
        break;
      case '0':
        if (in_.peek() < '0' || in_.peek() > '9') return one(0);
        break;
      default:
        break;
    }
    const bool plain = letter > ' ' && letter < 0x7F;
    const bool named = (letter >= '0' && letter <= '9') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= 'a' && letter <= 'z');
    if (plain && !named) return one(letter);
    std::string text;
    append_utf8(letter, text);
    in_.fail(
        "the escape \\{} is not supported (word boundaries, back-references and Unicode "
        "properties are not)",
        text);
    return one(letter);
  }

  uint32_t read_unicode_escape() {
    constexpr uint32_t kCharacterMax = 0x10FFFF;
    if (in_.take("{")) {
      uint32_t value = 0;
      do {
        value = value * 16 + in_.take_hex(1);
      } while (!in_.failed() && in_.peek() != '}' && value <= kCharacterMax);
      if (!in_.failed() && (!in_.take("}") || value > kCharacterMax)) {
        in_.fail("\\u{{…}} must be a character up to 10FFFF");
      }
      return checked(value);
    }
    const uint32_t value = in_.take_hex(4);
    const bool leads = value >= 0xD800 && value <= 0xDBFF;
    if (!leads || !in_.take("\\u")) return checked(value);
    const uint32_t second = in_.take_hex(4);
    if (second < 0xDC00 || second > 0xDFFF) return checked(value);
    return 0x10000 + ((value - 0xD800) << 10U) + (second - 0xDC00);
  }

  uint32_t checked(uint32_t character) {
    if (character >= 0xD800 && character <= 0xDFFF) in_.fail("half a surrogate pair");
    return character;
  }

  GrammarDraft& draft_;
  RegexOptions options_;
  PatternReader in_;
  size_t depth_ = 0;
};

}  // namespace

ExpressionId read_regex(GrammarDraft& draft, std::string_view pattern,
                        const RegexOptions& options) {
  if (!is_valid_utf8(pattern)) {
    draft.fail("it is not valid UTF-8");
    return draft.nothing();
  }
  return RegexReader(draft, pattern, options).read();
}

}  // namespace lockstep
