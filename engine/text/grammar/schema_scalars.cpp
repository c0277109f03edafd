// Strings and numbers of a schema.
#include <algorithm>
#include <cmath>

#include "engine/text/grammar/json_pieces.h"
#include "engine/text/grammar/schema_reader.h"

namespace lockstep {
namespace {

constexpr size_t kNumberDigitsMax = 15;   // of a number with bounds, on both sides of its point
constexpr size_t kIntegerDigitsMax = 18;  // fits 64 bits

// Formats as patterns whose texts all are of the format, with their least and greatest length.
struct Format {
  std::string_view name;
  std::string_view pattern;
  uint32_t min;
  uint32_t max;
};
#define LOCKSTEP_DATE                                          \
  "[12][0-9]{3}-(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|" \
  "((0[469]|11)-(0[1-9]|[12][0-9]|30))|(02-(0[1-9]|1[0-9]|2[0-8])))"
#define LOCKSTEP_TIME                                                    \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01]" \
  "[0-9]|2[0-3]):[0-5][0-9])"
#define LOCKSTEP_LABEL "[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?"
#define LOCKSTEP_HOST LOCKSTEP_LABEL "(\\." LOCKSTEP_LABEL "){0,3}"
#define LOCKSTEP_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
constexpr Format kFormats[] = {
    {"date", LOCKSTEP_DATE, 10, 10},
    {"time", LOCKSTEP_TIME, 9, 21},
    {"date-time", LOCKSTEP_DATE "T" LOCKSTEP_TIME, 20, 32},
    {"duration",
     "P([0-9]{1,4}W|([0-9]{1,4}Y)?([0-9]{1,2}M)?[0-9]{1,3}D(T[0-9]{1,2}H([0-9]{1,2}M([0-9]{1,2}S)?)"
     "?)?|T([0-9]{1,2}H)?([0-9]{1,2}M)?[0-9]{1,2}S)",
     3, 25},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", 36, 36},
    {"ipv4", LOCKSTEP_BYTE "(\\." LOCKSTEP_BYTE "){3}", 7, 15},
    {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}", 15, 39},
    {"hostname", LOCKSTEP_HOST, 1, 83},
    {"email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,20}){0,2}@" LOCKSTEP_HOST "\\.[a-z]{2,8}",
     6, 170},
    {"uri",
     "https?://" LOCKSTEP_HOST "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,32}){0,6}"
     "(\\?[A-Za-z0-9._~=&-]{0,64})?(#[A-Za-z0-9._~-]{0,32})?",
     8, 400},
};
#undef LOCKSTEP_DATE
#undef LOCKSTEP_TIME
#undef LOCKSTEP_LABEL
#undef LOCKSTEP_HOST
#undef LOCKSTEP_BYTE

// Formats that only annotate, as far as the drafts define them.
constexpr std::string_view kAnnotations[] = {"password",  "binary",        "byte",  "path",
                                             "file-path", "int32",         "int64", "float",
                                             "double",    "directory-path"};

}  // namespace

ExpressionId SchemaReader::read_string(const Json& schema, const Pointer& pointer) {
  const uint32_t min = read_count(schema, "minLength", 0, pointer);
  const uint32_t max = read_count(schema, "maxLength", GrammarDraft::kUnlimited, pointer);
  if (draft_.failed() || min > max) return draft_.nothing();
  const Json* pattern = find(schema, "pattern");
  const Json* format = find(schema, "format");
  if (format != nullptr && format->is_string() &&
      std::ranges::find(kAnnotations, format->get_ref<const std::string&>()) !=
          std::end(kAnnotations)) {
    format = nullptr;
  }
  const bool limited = min > 0 || max != GrammarDraft::kUnlimited;
  if (pattern != nullptr) {
    if (!pattern->is_string() || format != nullptr || limited) {
      fail(pointer + "/pattern",
           "it must be a string, and is not supported together with format, minLength or "
           "maxLength; say the length in the pattern");
      return draft_.nothing();
    }
    return pieces_.matching(pattern->get_ref<const std::string&>(), /*anywhere=*/true);
  }
  if (format != nullptr) {
    if (!format->is_string()) fail(pointer + "/format", "it must be a string");
    return draft_.failed() ? draft_.nothing()
                           : read_format(schema, format->get<std::string>(), min, max, pointer);
  }
  return limited ? pieces_.string(min, max) : pieces_.string();
}

ExpressionId SchemaReader::read_format(const Json& /*schema*/, const std::string& format,
                                       uint32_t min, uint32_t max, const Pointer& pointer) {
  for (const Format& known : kFormats) {
    if (known.name != format) continue;
    if (min > known.min || max < known.max) {
      fail(pointer + "/format",
           "its texts have {} to {} characters here; narrower lengths are not "
           "supported beside it",
           known.min, known.max);
    }
    const bool is_json = pieces_.form() == ValueForm::kJson;
    return draft_.shared((is_json ? "(format " : "(format of a call ") + format + ")",
                         [&] { return pieces_.matching(known.pattern, /*anywhere=*/false); });
  }
  std::vector<std::string_view> names;
  for (const Format& known : kFormats) names.push_back(known.name);
  fail(pointer + "/format", "\"{:.60}\" is not supported; known are {}", format,
       fmt::join(names, ", "));
  return draft_.nothing();
}

ExpressionId SchemaReader::read_number(const Json& schema, bool integer, const Pointer& pointer) {
  std::optional<DecimalBound> low;
  std::optional<DecimalBound> high;
  bool bounded = false;
  struct Keyword {
    const char* name;
    bool inclusive;
    bool is_low;
  };
  constexpr Keyword kKeywords[] = {{"minimum", true, true},
                                   {"exclusiveMinimum", false, true},
                                   {"maximum", true, false},
                                   {"exclusiveMaximum", false, false}};
  for (const Keyword& keyword : kKeywords) {
    const Json* value = find(schema, keyword.name);
    if (value == nullptr) continue;
    const Pointer place = pointer + "/" + keyword.name;
    if (!value->is_number()) {
      fail(place, "it must be a number");
      return draft_.nothing();
    }
    const double number = value->get<double>();
    bounded = true;
    // A value beyond the numbers that are generated is no bound.
    const double most = integer ? 1e15 : 1e15;
    if (keyword.is_low ? number <= -most : number >= most) continue;
    const auto bound = to_decimal(number, keyword.inclusive);
    if (!bound) {
      fail(place, "{} has too many digits to be a bound here", value->dump());
      return draft_.nothing();
    }
    std::optional<DecimalBound>& side = keyword.is_low ? low : high;
    const int order = side ? compare(*bound, *side) : 0;
    const bool tighter =
        !side || (keyword.is_low ? order > 0 : order < 0) || (order == 0 && !bound->inclusive);
    if (tighter) side = bound;
  }
  if (!bounded) return integer ? json_integer(draft_) : json_number(draft_);
  // Few enough digits that no number rounds to a bound that it must not reach.
  const size_t whole = integer && !high && !low ? kIntegerDigitsMax : kNumberDigitsMax;
  const size_t longest = std::max(low ? low->whole.size() : 1, high ? high->whole.size() : 1);
  const size_t fraction = integer ? 0 : std::max<size_t>(1, kNumberDigitsMax - longest);
  return decimals_between(draft_, low, high, whole, fraction);
}

}  // namespace lockstep
