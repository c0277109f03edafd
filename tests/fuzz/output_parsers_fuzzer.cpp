// Any bytes as what a model says in its turn, by each family's syntax of calls and with reasoning
// or without. However the text is cut, the same is told; calls that are told to be sound are sound.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {
namespace {

using Kind = TurnEvent::Kind;
constexpr size_t kPiecesMax = 12;

// One of each kind: a text as it is, one in quotes, a number, what may be either, and containers.
const Json& parameters() {
  static const Json kParameters = {{"properties",
                                    {{"a", {{"type", "string"}}},
                                     {"b", {{"type", "string"}, {"pattern", "x"}}},
                                     {"c", {{"type", "integer"}}},
                                     {"d", {{"type", {"string", "boolean", "null"}}}},
                                     {"e", {{"type", "array"}, {"items", {{"type", "string"}}}}},
                                     {"f", {{"properties", {{"a", {{"type", "string"}}}}}}}}}};
  return kParameters;
}

TurnRules make_rules(FuzzedDataProvider& input) {
  const auto syntaxes = call_syntaxes();
  const auto family = input.ConsumeIntegralInRange<size_t>(0, syntaxes.size());
  const CallSyntax* const calls = family < syntaxes.size() ? &syntaxes[family] : nullptr;
  TurnRules rules = {.calls = calls,
                     .functions = {"now", "get_weather"},
                     .parallel = input.ConsumeBool(),
                     .reasoning = input.ConsumeBool(),
                     .starts_in_reasoning = input.ConsumeBool()};
  const auto marks = reasoning_marks();
  rules.marks = &marks[input.ConsumeIntegralInRange<size_t>(0, marks.size() - 1)];
  const auto frames = answer_marks();
  const auto frame = input.ConsumeIntegralInRange<size_t>(0, frames.size());
  if (frame < frames.size()) rules.answer = &frames[frame];
  if (calls == nullptr) return rules;
  rules.messages = calls->messages;
  rules.starts_in_answer = input.ConsumeBool();
  auto kinds = std::make_shared<FunctionKinds>();
  kinds->emplace("now", find_parameter_kinds(parameters(), calls->pairs));
  rules.parameters = std::move(kinds);
  return rules;
}

// Joins what comes in several events of a kind.
void add_events(std::vector<TurnEvent> events, std::vector<TurnEvent>& joined) {
  for (TurnEvent& event : events) {
    const bool goes_on = !joined.empty() && joined.back().kind == event.kind &&
                         event.kind != Kind::kCall && event.kind != Kind::kCallEnd;
    if (goes_on) {
      joined.back().text += event.text;
    } else {
      joined.push_back(std::move(event));
    }
  }
}

std::vector<TurnEvent> parse(const TurnRules& rules, const std::vector<std::string_view>& pieces) {
  TurnParser parser(rules);
  std::vector<TurnEvent> events;
  for (const std::string_view piece : pieces) add_events(parser.push(piece), events);
  add_events(parser.finish(), events);
  return events;
}

std::vector<std::string_view> cut(std::string_view text, const std::vector<size_t>& sizes) {
  std::vector<std::string_view> pieces;
  for (const size_t size : sizes) {
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(pieces.back().size());
  }
  pieces.push_back(text);
  return pieces;
}

void check_calls(const TurnRules& rules, const Turn& turn) {
  CHECK(rules.parallel || turn.calls.size() <= 1, "{} calls", turn.calls.size());
  for (const TurnCall& call : turn.calls) {
    CHECK(std::ranges::find(rules.functions, call.name) != rules.functions.end(), "a call of {}",
          call.name);
    const auto arguments = parse_json(call.arguments);
    CHECK(arguments && arguments->is_object(), "arguments {}", call.arguments);
  }
}

void read_text(FuzzedDataProvider& input) {
  const TurnRules rules = make_rules(input);
  std::vector<size_t> sizes(input.ConsumeIntegralInRange<size_t>(0, kPiecesMax));
  for (size_t& size : sizes) size = input.ConsumeIntegralInRange<size_t>(1, 16);
  const std::string text = input.ConsumeRemainingBytesAsString();
  const auto whole = parse(rules, {text});
  const auto pieces = parse(rules, cut(text, sizes));
  CHECK(whole.size() == pieces.size(), "{} events at once, {} in pieces", whole.size(),
        pieces.size());
  for (size_t index = 0; index < whole.size(); ++index) {
    CHECK(whole[index].kind == pieces[index].kind && whole[index].text == pieces[index].text &&
              whole[index].sound == pieces[index].sound,
          "'{}' at once, '{}' in pieces", whole[index].text, pieces[index].text);
  }
  const Turn turn = read_turn(rules, text);
  check_calls(rules, turn);
  // The heads of messages are no text, nor are the marks of an answer.
  const bool plain = turn.calls.empty() && !rules.reasoning && rules.answer == nullptr &&
                     rules.messages == nullptr;
  CHECK(!plain || turn.text == text, "'{}' became '{}'", text, turn.text);
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  lockstep::read_text(input);
  return 0;
}
