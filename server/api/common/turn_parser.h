// Tells the parts of an assistant's turn apart while its text comes: what it says, what it thinks,
// which tools it calls. What only looks like a call is text; nothing is lost, nothing fails.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api/common/marked_call_reader.h"
#include "server/api/common/object_call_reader.h"
#include "server/api/common/parameter_types.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {

struct TurnEvent {
  enum class Kind {
    kText,       // the answer goes on with `text`
    kReasoning,  // the reasoning goes on
    kCall,       // a call of the function `text` begins
    kArguments,  // the JSON text of its arguments goes on
    kCallEnd,    // the call is over; `text` is all of it as the model wrote it
  };
  Kind kind = Kind::kText;
  std::string text;
  bool sound = true;  // of kCallEnd: whether name and arguments are whole JSON
};

// One call, complete.
struct TurnCall {
  std::string name;
  std::string arguments;  // a JSON text
};

// A whole turn.
struct Turn {
  std::string text;
  std::string reasoning;
  std::vector<TurnCall> calls;
  // The part that the turn would go on with: text or reasoning; none: it ends with a call, or with
  // reasoning that is over.
  std::optional<TurnEvent::Kind> open;
};

// The kinds of parameters by the name of their function.
using FunctionKinds = std::map<std::string, ParameterKinds, std::less<>>;

struct TurnRules {
  const CallSyntax* calls = nullptr;   // null: no calls are looked for
  std::vector<std::string> functions;  // that may be called; other names make text
  bool parallel = true;                // false: all that follows the first call is dropped
  bool reasoning = false;
  bool starts_in_reasoning = false;  // the prompt ended with the mark that opens it
  const ReasoningMarks* marks = &reasoning_marks().front();
  const AnswerMarks* answer = nullptr;      // around the text, if they come; null: none do
  const MessageSyntax* messages = nullptr;  // the turn is made of messages; it has no marks then
  bool starts_in_answer = false;            // of messages: the prompt ended within the last one
  // For calls that are pairs. Shared by the parsers of all choices, which only read it; null: all
  // parameters may be anything.
  std::shared_ptr<const FunctionKinds> parameters = nullptr;
};

class TurnParser {
 public:
  // How often, in all, text is read again that a call with an open quote had taken: each time it
  // may be nearly as much as a call may take.
  static constexpr size_t kRereadingsMax = 64;

  explicit TurnParser(TurnRules rules);

  std::vector<TurnEvent> push(std::string_view text);
  std::vector<TurnEvent> finish();

  // The state of the turn's reasoning: there is none, some may come yet, it goes on, or it has come
  // to its end.
  enum class ReasoningState { kNone, kAwaited, kOpen, kOver };
  ReasoningState reasoning_state() const;

 private:
  enum class Place {
    kBeforeReasoning,
    kReasoning,
    kBegin,  // of the answer: an object here may be a call without a mark
    kText,
    kOpened,     // behind the mark, before the object
    kCall,       // within the object
    kAfterCall,  // before the separator or the end of the group
    kHead,       // of a message
    kMessage,    // of reasoning or of text
    kCallOpen,   // of a message to a function, before the group of calls
    kDropped,
    kPlain  // nothing is looked for
  };

  // Whether there may be anything in the text but the answer.
  bool looks_for_marks() const { return rules_.calls != nullptr || rules_.answer != nullptr; }
  bool step();  // false: more text is needed
  bool before_reasoning();
  bool reasoning();
  bool begin();
  bool text();
  bool opened();
  bool call();
  bool after_call();
  bool head();
  bool message();
  bool call_open();

  void begin_message(std::string_view head);
  void begin_call();
  CallReader& reader();
  void open_group(std::string_view mark);
  void start_call();
  void break_call();
  void go_on_with_text();
  bool ends_before_rest();
  bool has_calls_within() const;
  void give_back(std::string_view text);
  // Text whose last white space is held back: before a call it is no part of the answer.
  void say(std::string_view text, TurnEvent::Kind kind = TurnEvent::Kind::kText);
  void add(TurnEvent::Kind kind, std::string text, bool sound = true);
  bool skip_space();
  std::string_view rest() const { return std::string_view(pending_).substr(done_); }
  std::string take(size_t bytes);  // of rest()

  TurnRules rules_;
  Place place_;
  std::string pending_;
  size_t done_ = 0;         // of pending_; what follows is not looked at yet
  bool is_blank_ = false;   // pending_ is white space: more of it changes nothing
  std::string held_space_;  // white space that text may go on with
  std::string group_;       // what was taken since the last call or text, for a group that is none
  std::variant<ObjectCallReader, MarkedCallReader> call_;
  bool at_first_word_ = false;  // white space before it is none of the reasoning
  bool has_reasoned_ = false;   // the reasoning is over
  bool called_ = false;         // kCall was sent for call_
  size_t calls_ = 0;            // sound ones
  size_t rereadings_ = 0;
  bool told_text_ = false;  // of the answer, or a broken call
  // For messages:
  TurnEvent::Kind message_kind_ = TurnEvent::Kind::kText;
  bool has_text_ = false;  // a message of text has begun
  std::vector<TurnEvent> events_;
};

// The whole turn of a text; calls that are broken or unfinished are text in it.
Turn read_turn(const TurnRules& rules, std::string_view text);

}  // namespace lockstep
