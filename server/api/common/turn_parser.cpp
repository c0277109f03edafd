#include "server/api/common/turn_parser.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/api/common/turn_syntax.h"

namespace lockstep {
namespace {

constexpr std::string_view kSpace = " \n\t\r";

// How many bytes at the end of `text` may be the beginning of `mark`.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

// Whether all of `text` may be the beginning of `mark`.
bool may_become(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

// Turn::open of a turn with this last event.
std::optional<TurnEvent::Kind> open_after(const TurnEvent& last,
                                          TurnParser::ReasoningState reasoning) {
  if (last.kind == TurnEvent::Kind::kCallEnd && last.sound) return std::nullopt;
  if (last.kind != TurnEvent::Kind::kReasoning) return TurnEvent::Kind::kText;
  if (reasoning == TurnParser::ReasoningState::kOver) return std::nullopt;
  return TurnEvent::Kind::kReasoning;
}

}  // namespace

TurnParser::TurnParser(TurnRules rules) : rules_(std::move(rules)) {
  place_ = rules_.calls != nullptr ? Place::kBegin : Place::kPlain;
  if (rules_.reasoning) {
    place_ = rules_.starts_in_reasoning ? Place::kReasoning : Place::kBeforeReasoning;
    at_first_word_ = rules_.starts_in_reasoning;
  }
}

std::vector<TurnEvent> TurnParser::push(std::string_view text) {
  pending_ += text;
  while (!pending_.empty() && step()) {
  }
  return std::exchange(events_, {});
}

std::vector<TurnEvent> TurnParser::finish() {
  if (place_ == Place::kCall && called_) {
    add(TurnEvent::Kind::kCallEnd, group_ + call_->raw(), false);
  } else if (place_ == Place::kCall) {
    say(std::exchange(group_, {}) + call_->raw());
  } else if (place_ == Place::kOpened) {
    say(std::exchange(group_, {}));
  }
  // Text that is left behind a call may only be the beginning of its group's end.
  const bool unfinished_mark = place_ == Place::kAfterCall;
  const auto kind =
      place_ == Place::kReasoning ? TurnEvent::Kind::kReasoning : TurnEvent::Kind::kText;
  if (place_ != Place::kDropped && !unfinished_mark) say(pending_, kind);
  pending_.clear();
  if (has_reasoned_ && place_ == Place::kBegin) held_space_.clear();
  // White space between and after calls is none of the answer's, nor that around reasoning.
  if (calls_ == 0 && kind == TurnEvent::Kind::kText && !held_space_.empty()) {
    add(kind, std::exchange(held_space_, {}));
  }
  return std::exchange(events_, {});
}

TurnParser::ReasoningState TurnParser::reasoning_state() const {
  if (place_ == Place::kBeforeReasoning) return ReasoningState::kAwaited;
  if (place_ == Place::kReasoning) return ReasoningState::kOpen;
  return has_reasoned_ ? ReasoningState::kOver : ReasoningState::kNone;
}

bool TurnParser::step() {
  switch (place_) {
    case Place::kBeforeReasoning:
      return before_reasoning();
    case Place::kReasoning:
      return reasoning();
    case Place::kBegin:
      return begin();
    case Place::kText:
      return text();
    case Place::kOpened:
      return opened();
    case Place::kCall:
      return call();
    case Place::kAfterCall:
      return after_call();
    case Place::kDropped:
      pending_.clear();
      return false;
    case Place::kPlain:
      add(TurnEvent::Kind::kText, std::exchange(held_space_, {}) + std::exchange(pending_, {}));
      return false;
  }
  return false;
}

bool TurnParser::before_reasoning() {
  const size_t start = pending_.find_first_not_of(kSpace);
  const std::string_view rest =
      start == std::string::npos ? std::string_view() : std::string_view(pending_).substr(start);
  if (may_become(rest, kReasoningOpen)) return false;
  if (!rest.starts_with(kReasoningOpen)) {
    place_ = rules_.calls != nullptr ? Place::kBegin : Place::kPlain;
    return true;
  }
  pending_.erase(0, start + kReasoningOpen.size());
  at_first_word_ = true;
  place_ = Place::kReasoning;
  return true;
}

bool TurnParser::reasoning() {
  const size_t end = pending_.find(kReasoningClose);
  if (end == std::string::npos) {
    const size_t sure = pending_.size() - begun(pending_, kReasoningClose);
    say(std::string_view(pending_).substr(0, sure), TurnEvent::Kind::kReasoning);
    pending_.erase(0, sure);
    return false;
  }
  say(std::string_view(pending_).substr(0, end), TurnEvent::Kind::kReasoning);
  pending_.erase(0, end + kReasoningClose.size());
  held_space_.clear();
  at_first_word_ = false;
  has_reasoned_ = true;
  place_ = Place::kBegin;
  return true;
}

bool TurnParser::begin() {
  if (!skip_space()) return false;
  if (has_reasoned_) held_space_.clear();  // blank lines part the reasoning from the answer
  if (rules_.calls == nullptr) {
    place_ = Place::kPlain;
  } else if (rules_.calls->bare && pending_.front() == '{') {
    open_group("");
  } else {
    place_ = Place::kText;
  }
  return true;
}

bool TurnParser::text() {
  const std::string_view mark = rules_.calls->open;
  const size_t found = pending_.find(mark);
  if (found == std::string::npos) {
    const size_t sure = pending_.size() - begun(pending_, mark);
    say(std::string_view(pending_).substr(0, sure));
    pending_.erase(0, sure);
    return false;
  }
  say(std::string_view(pending_).substr(0, found));
  pending_.erase(0, found + mark.size());
  open_group(std::string(mark));
  return true;
}

void TurnParser::open_group(std::string mark) {
  group_ = std::exchange(held_space_, {}) + mark;
  place_ = Place::kOpened;
}

bool TurnParser::opened() {
  const size_t start = pending_.find_first_not_of(kSpace);
  if (start == std::string::npos) return false;
  const std::string_view list = rules_.calls->list_open;
  const bool list_opens =
      !list.empty() && pending_[start] == list.front() && !group_.ends_with(list);
  if (list_opens) {
    group_ += pending_.substr(0, start + 1);
    pending_.erase(0, start + 1);
    return true;
  }
  if (pending_[start] != '{') {
    say(std::exchange(group_, {}));
    place_ = Place::kText;
    return true;
  }
  group_ += pending_.substr(0, start);
  pending_.erase(0, start);
  call_.emplace();
  called_ = false;
  place_ = Place::kCall;
  return true;
}

bool TurnParser::call() {
  pending_.erase(0, call_->push(pending_));
  if (call_->name() && !called_) start_call();
  if (place_ != Place::kCall) return true;
  if (called_) {
    if (std::string arguments = call_->take_arguments(); !arguments.empty()) {
      add(TurnEvent::Kind::kArguments, std::move(arguments));
    }
  }
  if (call_->state() == CallReader::State::kOpen) return true;  // it took all, or up to its name
  if (call_->state() == CallReader::State::kBroken) {
    break_call();
    return true;
  }
  add(TurnEvent::Kind::kCallEnd, group_ + call_->raw());
  group_.clear();
  ++calls_;
  place_ = rules_.parallel ? Place::kAfterCall : Place::kDropped;
  return true;
}

void TurnParser::start_call() {
  if (std::ranges::find(rules_.functions, *call_->name()) == rules_.functions.end()) {
    break_call();
    return;
  }
  called_ = true;
  add(TurnEvent::Kind::kCall, *call_->name());
}

void TurnParser::break_call() {
  std::string raw = std::exchange(group_, {}) + call_->raw();
  place_ = Place::kText;
  if (called_) {
    add(TurnEvent::Kind::kCallEnd, std::move(raw), false);
  } else {
    say(raw);
  }
}

bool TurnParser::after_call() {
  const size_t start = pending_.find_first_not_of(kSpace);
  if (start == std::string::npos) return false;
  const std::string_view rest = std::string_view(pending_).substr(start);
  const std::string_view separator = rules_.calls->separator;
  const std::string_view close = rules_.calls->close;
  if (!separator.empty() && rest.starts_with(separator)) {
    group_ = pending_.substr(0, start + separator.size());
    pending_.erase(0, start + separator.size());
    place_ = Place::kOpened;
    return true;
  }
  if (may_become(rest, close)) return false;
  if (!close.empty() && rest.starts_with(close)) pending_.erase(0, start + close.size());
  place_ = Place::kText;
  return true;
}

void TurnParser::say(std::string_view text, TurnEvent::Kind kind) {
  if (at_first_word_) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (text.empty()) return;
  at_first_word_ = false;
  const size_t last = text.find_last_not_of(kSpace);
  if (last == std::string_view::npos) {
    held_space_ += text;
    return;
  }
  std::string said = std::exchange(held_space_, {});
  said += text.substr(0, last + 1);
  held_space_ = text.substr(last + 1);
  add(kind, std::move(said));
}

void TurnParser::add(TurnEvent::Kind kind, std::string text, bool sound) {
  if (text.empty() && kind != TurnEvent::Kind::kCallEnd) return;
  const bool goes_on = !events_.empty() && events_.back().kind == kind &&
                       (kind == TurnEvent::Kind::kText || kind == TurnEvent::Kind::kReasoning ||
                        kind == TurnEvent::Kind::kArguments);
  if (goes_on) {
    events_.back().text += text;
  } else {
    events_.push_back(TurnEvent{kind, std::move(text), sound});
  }
}

bool TurnParser::skip_space() {
  const size_t start = pending_.find_first_not_of(kSpace);
  held_space_ += pending_.substr(0, start);
  pending_.erase(0, start);
  return !pending_.empty();
}

Turn read_turn(const TurnRules& rules, std::string_view text) {
  TurnParser parser(rules);
  std::vector<TurnEvent> events = parser.push(text);
  std::ranges::move(parser.finish(), std::back_inserter(events));
  Turn turn;
  turn.open = TurnEvent::Kind::kText;
  TurnCall call;
  for (TurnEvent& event : events) {
    switch (event.kind) {
      case TurnEvent::Kind::kText:
        turn.text += event.text;
        break;
      case TurnEvent::Kind::kReasoning:
        turn.reasoning += event.text;
        break;
      case TurnEvent::Kind::kCall:
        call = TurnCall{std::move(event.text), ""};
        break;
      case TurnEvent::Kind::kArguments:
        call.arguments += event.text;
        break;
      case TurnEvent::Kind::kCallEnd:
        if (event.sound) {
          turn.calls.push_back(std::move(call));
        } else {
          turn.text += event.text;
        }
        break;
    }
  }
  if (!events.empty()) turn.open = open_after(events.back(), parser.reasoning_state());
  return turn;
}

ReasoningCount::ReasoningCount(const TurnRules& rules) {
  if (!rules.reasoning) return;
  parser_.emplace(TurnRules{
      .functions = {}, .reasoning = true, .starts_in_reasoning = rules.starts_in_reasoning});
}

void ReasoningCount::add(const Output& output) {
  for (const OutputToken& token : output.tokens) {
    if (!parser_) return;
    ++seen_;
    parser_->push(token.bytes);
    const TurnParser::ReasoningState reasoning = parser_->reasoning_state();
    if (reasoning == TurnParser::ReasoningState::kOpen ||
        reasoning == TurnParser::ReasoningState::kOver) {
      tokens_ = seen_;
    }
    if (reasoning == TurnParser::ReasoningState::kOver ||
        reasoning == TurnParser::ReasoningState::kNone) {
      parser_.reset();
    }
  }
  // The tokens of a stop string do not come.
  const bool go_on = parser_ && parser_->reasoning_state() == TurnParser::ReasoningState::kOpen;
  if (go_on && output.finish) tokens_ = output.generated_tokens;
}

}  // namespace lockstep
