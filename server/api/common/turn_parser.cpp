#include "server/api/common/turn_parser.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "server/api/common/message_head.h"
#include "server/api/common/text_marks.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {
namespace {

constexpr std::string_view kSpace = kTurnSpace;
constexpr size_t kHeadBytesMax = 1024;  // a message's head longer than this is text

// Whether a call may begin with this text; none while more of it tells.
std::optional<bool> begins_call(const CallSyntax& syntax, std::string_view text) {
  if (syntax.form == CallForm::kObject) return text.front() == '{';
  const std::string_view head = without_space(syntax.head);
  if (head.empty()) return is_name_letter(text.front());
  if (may_become(text, head)) return std::nullopt;
  return text.starts_with(head);
}

// Whether a group without a mark may begin with this letter.
bool begins_bare(const CallSyntax& syntax, char letter) {
  if (!syntax.list_open.empty()) return letter == syntax.list_open.front();
  return syntax.form == CallForm::kObject ? letter == '{' : is_name_letter(letter);
}

// Whether a text without the end of a head is the begin of one.
bool is_begun_head(const MessageSyntax& messages, std::string_view text) {
  if (text.starts_with(messages.start)) return true;
  if (!messages.channel.empty()) return text.starts_with(messages.channel);
  return text.starts_with(messages.recipient) && text.find_first_of(kSpace) == text.npos;
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
  place_ = looks_for_marks() ? Place::kBegin : Place::kPlain;
  if (rules_.reasoning) {
    place_ = rules_.starts_in_reasoning ? Place::kReasoning : Place::kBeforeReasoning;
    at_first_word_ = rules_.starts_in_reasoning;
  }
  if (rules_.calls != nullptr && rules_.calls->messages != nullptr) {
    rules_.messages = rules_.calls->messages;
  }
  if (rules_.messages != nullptr) {
    place_ = rules_.starts_in_answer ? Place::kMessage : Place::kHead;
    has_text_ = rules_.starts_in_answer;
    at_first_word_ = false;
  }
}

std::vector<TurnEvent> TurnParser::push(std::string_view text) {
  const bool tells_nothing = is_blank_ && text.find_first_not_of(kSpace) == text.npos;
  pending_ += text;
  if (tells_nothing) return {};
  while (!rest().empty() && step()) {
  }
  pending_.erase(0, std::exchange(done_, 0));
  is_blank_ = !pending_.empty() && pending_.find_first_not_of(kSpace) == std::string::npos;
  return std::exchange(events_, {});
}

std::string TurnParser::take(size_t bytes) {
  std::string taken(rest().substr(0, bytes));
  done_ += taken.size();
  return taken;
}

std::vector<TurnEvent> TurnParser::finish() {
  while (place_ == Place::kCall && ends_before_rest()) {
    while (!rest().empty() && step()) {
    }
  }
  pending_.erase(0, std::exchange(done_, 0));
  if (place_ == Place::kCall && called_) {
    add(TurnEvent::Kind::kCallEnd, group_ + reader().raw(), false);
  } else if (place_ == Place::kCall) {
    say(std::exchange(group_, {}) + reader().raw());
  } else if (place_ == Place::kOpened || place_ == Place::kCallOpen) {
    say(std::exchange(group_, {}));
  }
  // Text that is left behind a call may only be the beginning of its group's end, and that of a
  // head is none of a message.
  const bool in_head = place_ == Place::kHead && is_begun_head(*rules_.messages, pending_);
  if (in_head) held_space_.clear();
  const bool unfinished_mark = place_ == Place::kAfterCall || in_head;
  auto kind = place_ == Place::kReasoning ? TurnEvent::Kind::kReasoning : TurnEvent::Kind::kText;
  if (place_ == Place::kMessage) kind = message_kind_;
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
  const bool begins = place_ == Place::kHead && !has_text_ && calls_ == 0;
  if (place_ == Place::kBeforeReasoning || begins) return ReasoningState::kAwaited;
  const bool reasons = place_ == Place::kMessage && message_kind_ == TurnEvent::Kind::kReasoning;
  if (place_ == Place::kReasoning || reasons) return ReasoningState::kOpen;
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
    case Place::kHead:
      return head();
    case Place::kMessage:
      return message();
    case Place::kCallOpen:
      return call_open();
    case Place::kDropped:
      done_ = pending_.size();
      return false;
    case Place::kPlain:
      add(TurnEvent::Kind::kText, std::exchange(held_space_, {}) + take(rest().size()));
      return false;
  }
  return false;
}

bool TurnParser::before_reasoning() {
  const std::string_view mark = rules_.marks->open;
  const std::string_view close = rules_.marks->close;
  const size_t start = std::min(rest().find_first_not_of(kSpace), rest().size());
  const std::string_view said = rest().substr(start);
  if (may_become(said, mark) || may_become(said, close)) return false;
  // A model that does not reason may say so by the second mark alone.
  if (said.starts_with(close)) {
    done_ += start;
    place_ = Place::kReasoning;
    return true;
  }
  if (!said.starts_with(mark)) {
    place_ = looks_for_marks() ? Place::kBegin : Place::kPlain;
    return true;
  }
  done_ += start + mark.size();
  at_first_word_ = true;
  place_ = Place::kReasoning;
  return true;
}

bool TurnParser::reasoning() {
  const std::string_view mark = rules_.marks->close;
  const size_t end = rest().find(mark);
  if (end == std::string::npos) {
    say(take(rest().size() - begun_bytes(rest(), mark)), TurnEvent::Kind::kReasoning);
    return false;
  }
  say(take(end), TurnEvent::Kind::kReasoning);
  done_ += mark.size();
  held_space_.clear();
  at_first_word_ = false;
  has_reasoned_ = true;
  place_ = Place::kBegin;
  return true;
}

bool TurnParser::begin() {
  if (!skip_space()) return false;
  if (has_reasoned_) held_space_.clear();  // blank lines part the reasoning from the answer
  if (rules_.answer != nullptr) {
    if (may_become(rest(), rules_.answer->open)) return false;
    if (rest().starts_with(rules_.answer->open)) {
      done_ += rules_.answer->open.size();
      held_space_.clear();
      place_ = Place::kText;
      return true;
    }
  }
  if (!looks_for_marks()) {
    place_ = Place::kPlain;
  } else if (rules_.calls != nullptr && rules_.calls->bare &&
             begins_bare(*rules_.calls, rest().front())) {
    open_group("");
  } else {
    place_ = Place::kText;
  }
  return true;
}

bool TurnParser::text() {
  std::array<std::string_view, 3> marks;
  if (rules_.calls != nullptr) marks[0] = rules_.calls->open;
  if (rules_.answer != nullptr) marks[1] = rules_.answer->close;
  if (rules_.answer != nullptr) marks[2] = rules_.answer->turn_end;
  size_t first = std::string_view::npos;
  std::string_view found;
  size_t begun = 0;
  for (const std::string_view mark : marks) {
    const size_t at = mark.empty() ? std::string_view::npos : rest().find(mark);
    if (at < first) found = mark;
    first = std::min(first, at);
    begun = std::max(begun, begun_bytes(rest(), mark));
  }
  if (found.empty()) {
    say(take(rest().size() - begun));
    return false;
  }
  say(take(first));
  if (found == marks[0]) {
    open_group(take(found.size()));
  } else {
    done_ += found.size();
  }
  return true;
}

void TurnParser::open_group(std::string_view mark) {
  group_ = std::exchange(held_space_, {}).append(mark);
  place_ = Place::kOpened;
}

bool TurnParser::opened() {
  const size_t start = rest().find_first_not_of(kSpace);
  if (start == std::string::npos) return false;
  const std::string_view list = rules_.calls->list_open;
  const bool list_opens = !list.empty() && rest()[start] == list.front() && !group_.ends_with(list);
  if (list_opens) {
    group_ += take(start + 1);
    return true;
  }
  if (rules_.answer != nullptr && !rules_.answer->lead.empty() &&
      group_.ends_with(rules_.answer->lead)) {
    const std::string_view answer = rules_.answer->open;
    if (may_become(rest(), answer)) return false;
    if (rest().starts_with(answer)) {
      done_ += answer.size();
      // White space before the mark is that of the text around it, if there is some before.
      group_.resize(told_text_ ? group_.size() - rules_.answer->lead.size() : 0);
      held_space_ = std::exchange(group_, {});
      go_on_with_text();
      return true;
    }
  }
  const auto begins = begins_call(*rules_.calls, rest().substr(start));
  if (!begins) return false;
  if (!*begins) {
    go_on_with_text();
    say(std::exchange(group_, {}));
    return true;
  }
  group_ += take(start);
  begin_call();
  return true;
}

// Whether messages to functions hold groups of calls.
bool TurnParser::has_calls_within() const {
  return rules_.messages != nullptr && rules_.calls != nullptr && !rules_.calls->open.empty();
}

// Goes on where a supposed call turns out to be text.
void TurnParser::go_on_with_text() {
  place_ = rules_.messages != nullptr ? Place::kMessage : Place::kText;
  message_kind_ = TurnEvent::Kind::kText;
  has_text_ = true;
}

void TurnParser::begin_call() {
  if (rules_.calls->form == CallForm::kObject) {
    call_.emplace<ObjectCallReader>(*rules_.calls);
  } else {
    call_.emplace<MarkedCallReader>(*rules_.calls);
  }
  called_ = false;
  place_ = Place::kCall;
}

CallReader& TurnParser::reader() {
  return std::visit([](auto& reader) -> CallReader& { return reader; }, call_);
}

bool TurnParser::head() {
  const MessageSyntax& messages = *rules_.messages;
  if (!skip_space()) return false;
  const std::string_view said = rest();
  const FoundHead found = find_message_head(messages, said);
  if (found.start == HeadStart::kUnknown) return false;
  if (found.start == HeadStart::kEnd) {
    done_ += found.bytes;
    held_space_.clear();
    return true;
  }
  const std::string_view near = said.substr(0, kHeadBytesMax + messages.body.size());
  const bool is_head = found.start == HeadStart::kHead;
  const size_t size = is_head ? near.find(messages.body) : std::string_view::npos;
  if (is_head && size == near.npos && near.size() == said.size()) return false;
  if (size == near.npos) {
    go_on_with_text();
    say(take(1));  // a mark that is none would be found again
    return true;
  }
  held_space_.clear();
  begin_message(take(size + messages.body.size()));
  return true;
}

// Text or reasoning, or a call that is read on from its arguments.
void TurnParser::begin_message(std::string_view head) {
  const MessageSyntax& messages = *rules_.messages;
  const MessageHead read = read_message_head(messages, head);
  const CallSyntax* calls = rules_.calls;
  const bool is_inner = !read.recipient.empty() && read.recipient == messages.reasoning_recipient;
  const bool to_function =
      !read.recipient.empty() && !is_inner && read.recipient != messages.answer_recipient;
  if (to_function && calls != nullptr) {
    group_ = head;
    if (has_calls_within()) {
      place_ = Place::kCallOpen;
      return;
    }
    std::string_view name = read.recipient;
    if (name.starts_with(calls->prefix)) name.remove_prefix(calls->prefix.size());
    begin_call();
    call_.emplace<MarkedCallReader>(*calls, std::string(name));
    start_call();
    return;
  }
  place_ = Place::kMessage;
  const bool on_channel = read.recipient.empty() && !messages.channel.empty() &&
                          read.channel == messages.reasoning_channel;
  const bool reasons = is_inner || on_channel;
  message_kind_ = reasons ? TurnEvent::Kind::kReasoning : TurnEvent::Kind::kText;
  bool& has_begun = reasons ? has_reasoned_ : has_text_;
  held_space_ = has_begun ? "\n\n" : "";
  has_begun = true;
  if (to_function) say(head);
}

bool TurnParser::call_open() {
  const size_t start = rest().find_first_not_of(kSpace);
  if (start == std::string::npos) return false;
  const std::string_view said = rest().substr(start);
  const std::string_view open = rules_.calls->open;
  if (may_become(said, open)) return false;
  if (said.starts_with(open)) {
    group_ += take(start + open.size());
    place_ = Place::kOpened;
  } else {
    go_on_with_text();
    say(std::exchange(group_, {}));
  }
  return true;
}

bool TurnParser::message() {
  const FoundMessageEnd end = find_message_end(*rules_.messages, rest());
  say(take(end.position), message_kind_);
  if (!end.found) return false;
  held_space_.clear();
  place_ = Place::kHead;
  return true;
}

bool TurnParser::call() {
  done_ += reader().push(rest());
  give_back(reader().take_rest());
  if (reader().name() && !called_) start_call();
  if (place_ != Place::kCall) return true;
  if (called_) {
    if (std::string arguments = reader().take_arguments(); !arguments.empty()) {
      add(TurnEvent::Kind::kArguments, std::move(arguments));
    }
  }
  if (reader().state() == CallReader::State::kOpen) return true;  // it took all, or up to its name
  if (reader().state() == CallReader::State::kBroken) {
    ends_before_rest();
    break_call();
    return true;
  }
  add(TurnEvent::Kind::kCallEnd, group_ + reader().raw());
  group_.clear();
  ++calls_;
  const bool is_message = rules_.messages != nullptr && !has_calls_within();
  place_ = is_message ? Place::kHead : Place::kAfterCall;
  if (!rules_.parallel) place_ = Place::kDropped;
  return true;
}

void TurnParser::start_call() {
  if (std::ranges::find(rules_.functions, *reader().name()) == rules_.functions.end()) {
    break_call();
    return;
  }
  called_ = true;
  if (rules_.parameters != nullptr) {
    const auto kinds = rules_.parameters->find(*reader().name());
    if (kinds != rules_.parameters->end()) reader().set_parameters(kinds->second);
  }
  add(TurnEvent::Kind::kCall, *reader().name());
}

// Whether an open quote of the call is none, so that some of its bytes come again.
bool TurnParser::ends_before_rest() {
  if (rereadings_ == kRereadingsMax || !reader().end_text()) return false;
  ++rereadings_;
  give_back(reader().take_rest());
  return true;
}

// The bytes that were taken last come again.
void TurnParser::give_back(std::string_view text) {
  if (text.size() <= done_) {
    done_ -= text.size();
  } else {
    pending_.replace(0, std::exchange(done_, 0), text);
  }
}

void TurnParser::break_call() {
  // The text before a name may hold another call.
  if (!called_ && !reader().name() && rules_.calls->form != CallForm::kObject) {
    give_back(reader().raw());
    go_on_with_text();
    return say(std::exchange(group_, {}));
  }
  std::string raw = std::exchange(group_, {}) + reader().raw();
  go_on_with_text();
  if (called_) {
    add(TurnEvent::Kind::kCallEnd, std::move(raw), false);
  } else {
    say(raw);
  }
}

bool TurnParser::after_call() {
  const size_t start = rest().find_first_not_of(kSpace);
  if (start == std::string::npos) return false;
  const std::string_view said = rest().substr(start);
  const CallSyntax& calls = *rules_.calls;
  const std::string_view separator = without_space(calls.separator);
  if (may_become(said, separator)) return false;
  if (!separator.empty() && said.starts_with(separator)) {
    group_ = take(start + separator.size());
    place_ = Place::kOpened;
    return true;
  }
  bool may_close = false;
  const size_t closes = spaced_mark_bytes(said, calls.close, may_close);
  if (may_close) return false;
  if (calls.grouped && closes == 0) {
    const auto begins = begins_call(calls, said);
    if (!begins) return false;
    if (*begins) {
      group_ = take(start);
      begin_call();
      return true;
    }
  }
  if (closes > 0) done_ += start + closes;
  place_ = rules_.messages != nullptr ? Place::kHead : Place::kText;
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
  told_text_ = told_text_ || kind == TurnEvent::Kind::kText || !sound;
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
  held_space_ += take(std::min(rest().find_first_not_of(kSpace), rest().size()));
  return !rest().empty();
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
          turn.calls.push_back(std::exchange(call, {}));
        } else {
          turn.text += event.text;
        }
        break;
    }
  }
  if (!events.empty()) turn.open = open_after(events.back(), parser.reasoning_state());
  return turn;
}

}  // namespace lockstep
