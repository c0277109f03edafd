// How a family of models writes reasoning and calls of tools into its text.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/engine.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

// The marks around a model's reasoning, with which a turn begins where its family reasons.
// Templates of models that always think write the first one into the prompt.
struct ReasoningMarks {
  std::string_view open;
  std::string_view close;
};

// All of them; the first one is <think>, </think>.
std::span<const ReasoningMarks> reasoning_marks();

// The marks with which the answer to this prompt begins within reasoning; null where it does not.
const ReasoningMarks* find_open_reasoning(std::string_view prompt);

// The marks of reasoning that is over and empty, with which this prompt ends; null where it does
// not.
const ReasoningMarks* find_closed_reasoning(std::string_view prompt);

// Ends a prompt that opens reasoning with reasoning that is over and empty, as templates write them
// for a model that shall not think. False where it is none; nothing happens then.
bool close_reasoning(TracedText& prompt);

// The marks around an answer, which are none of it; some families write them.
struct AnswerMarks {
  std::string_view open;
  std::string_view close;
  std::string_view turn_end = {};  // may stand behind all of the turn
  std::string_view lead = {};      // before `open`, at the end of the prompt
};

// All of them.
std::span<const AnswerMarks> answer_marks();

// Arguments as pairs of a key and a value, each between marks. The schema of the function tells
// whether a value is JSON or a text that is written as it is (see parameter_types.h).
struct PairSyntax {
  std::string_view open = {};     // before a key
  std::string_view key_end = {};  // behind it
  // Instead, before JSON; empty: key_end, the schema tells which it is.
  std::string_view json_key_end = {};
  // Or else, before JSON: the value's type between these, any word.
  std::string_view type_open = {};
  std::string_view type_end = {};
  std::string_view value_open = {};  // may be empty
  std::string_view value_end = {};
  std::string_view padding = {};  // within both: one at either end of a value is no part of it
  // Around a text that holds one of these letters; models may write them around any value.
  std::string_view quoted_letters = {};
  std::string_view quote_open = {};
  std::string_view quote_close = {};
  // A key that its value's end names is no longer: each letter of such an end is compared.
  static constexpr size_t kNestedKeyBytesMax = 4096;
  // The key of each item of a list. With it, lists and objects are written as pairs of their own,
  // and the key and key_end follow value_end, as in XML. Empty: they are JSON.
  std::string_view item_key = {};
};

// A turn made of messages, each with a head that says what it is for: reasoning, the answer, or a
// call of the function that it is sent to. The call is the message's text, or, where
// CallSyntax::open is not empty, a group of calls within it.
struct MessageSyntax {
  std::string_view start;         // begins the head of a message that is not the turn's first
  std::string_view channel = {};  // before the channel's name, in the head; empty: there are none
  std::string_view recipient;     // before the recipient's name, in the head
  std::string_view body;          // behind the head
  std::array<std::string_view, 3> ends;
  // A message of reasoning has either of both.
  std::string_view reasoning_channel = {};
  std::string_view reasoning_recipient = {};
  std::string_view answer_recipient = {};  // or none
  std::string_view reasoning_head;         // of a message of reasoning with which the turn begins
  std::string_view next;         // behind a message's end, before the head of the next one
  std::string_view answer_head;  // written before an answer that is held to a form
};

enum class CallForm {
  kObject,   // {"name": …, "arguments": …}
  kLiteral,  // the name between marks, then all arguments as one value, in some ValueSyntax
  kPairs,    // the name between marks, then the arguments one by one
};

// How values are written, and all arguments of a call as one value.
enum class ValueSyntax {
  kJson,    // {"key": "text", "other": [true, null, 1]}
  kPython,  // (key="text", other=[True, None, 1]): a function's arguments, then Python's literals
  kGemma,   // {key:<|"|>text<|"|>,other:[true,null,1]}: texts as they are, between marks
};

// Stands around texts of ValueSyntax::kGemma.
constexpr std::string_view kGemmaQuote = "<|\"|>";

// A turn holds text and groups of calls: `open`, then calls with `separator` between them, then
// `close`. White space around marks is skipped; it is written as the marks of the row have it.
struct CallSyntax {
  std::string_view name;
  // The text that a template of the family writes for a turn that calls the function
  // kProbeFunction.
  std::string_view sign;
  // For templates that take tools and write no calls: texts one of which stands before the tools.
  std::array<std::string_view, 2> tool_signs = {};
  std::string_view open = {};
  std::string_view list_open = {};  // may follow `open`
  std::string_view separator = {};  // empty: each call is a group of its own, unless `grouped`
  std::string_view close = {};
  std::string_view arguments = {};     // of objects: the name of the arguments,
  std::string_view name_key = "name";  // that of the function's name,
  std::string_view id_key = {};        // and that of a number of the call; empty: it has none
  bool bare = false;                   // a turn that starts with a call, or with `list_open`, is
                                       // one without `open`
  bool parallel = true;                // the template takes turns with several calls
  size_t id_length = 0;                // of the ids that the template takes; 0: any
  CallForm form = CallForm::kObject;
  bool grouped = false;  // calls follow one another in a group without a separator

  // For calls that are no objects:
  std::string_view head = {};         // before the name, or the id
  std::string_view id = {};           // a pattern of an id before the name, not read
  std::string_view id_end = {};       // behind it; empty: there is none
  std::string_view prefix = {};       // of each name; models leave it out at times
  std::string_view number_open = {};  // between name and name_end: a number or an id, not read
  std::string_view number = {};       // a pattern of it
  std::string_view name_end = {};     // behind the name
  std::string_view call_end = {};     // behind the arguments
  ValueSyntax values = ValueSyntax::kJson;  // of kLiteral
  PairSyntax pairs = {};
  // For all forms: the white space that the family writes between marks,
  std::string_view line = {};
  bool dense = false;  // or only between calls, and between them and the marks of their group
  std::string_view answer_name = {};        // what stands for a function's name before an answer
  const MessageSyntax* messages = nullptr;  // null: its turns are not made of messages
};

// All families.
std::span<const CallSyntax> call_syntaxes();

// Tells families apart: see CallSyntax::sign.
constexpr std::string_view kProbeFunction = "lockstep_probe";

// A control token that marks calls or reasoning.
struct ControlMark {
  std::string text;
  TokenId token = 0;
  bool ends_generation = false;  // constraints cannot ask for it
};

// The variable in which a chat template takes the tools.
enum class ToolsVariable {
  kTools,      // as OpenAI's clients send them
  kXmlTools,   // "xml_tools": a list of the functions alone
  kFunctions,  // "functions": the JSON text of that list, empty where there are none; it wants the
               // date as well, as "datetime"
};

// The abilities of the model's chat template beyond text.
struct ChatFamily {
  const CallSyntax* calls = nullptr;  // null: there is no chat template
  // The template knows no tools: they and their calls are put into the messages.
  bool general_tools = false;
  ToolsVariable tools_variable = ToolsVariable::kTools;
  bool system_messages = false;  // it takes a message of the role "system", and says it
  // The marks between which turns start with reasoning; null: they do not.
  const ReasoningMarks* reasoning = nullptr;
  const AnswerMarks* answer = nullptr;  // null: there are none
  // Null: turns are not made of messages.
  const MessageSyntax* messages = nullptr;
  // The member of a message in which the template wants earlier reasoning.
  std::string_view reasoning_member = "reasoning_content";
  // The template's word for an effort with which the model does not reason.
  std::string_view least_effort = "none";
  bool writes_calls = true;     // false: earlier calls are put into the messages as text
  bool describes_all = false;   // it takes no functions without a description, or parameters
  bool text_arguments = false;  // it takes the arguments of calls as JSON texts alone
  // The control tokens that mark calls and reasoning: the reader of a turn wants their text, and
  // constraints ask for them.
  std::vector<ControlMark> marks;
  std::vector<TokenId> visible_tokens;  // the same, as Request has them
};

// By what the template makes of turns with a call and with reasoning.
ChatFamily find_chat_family(const Engine& engine);

// Puts the tools, as template_tools() makes them or null, into the variables of a chat template.
void put_tools(ToolsVariable variable, Json tools, Json& variables);

// The id of a call, as the family's template takes it: the same for the same id.
std::string fitting_call_id(const CallSyntax& syntax, const std::string& id);

}  // namespace lockstep
