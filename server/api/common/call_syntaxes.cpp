// The table of families: one row each.
#include "server/api/common/turn_syntax.h"

namespace lockstep {
namespace {

// gpt-oss (harmony): <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary
// to=functions.NAME <|constrain|>json<|message|>{…}<|call|>, or
// …<|channel|>final<|message|>…<|return|>.
constexpr MessageSyntax kHarmony = {.start = "<|start|>",
                                    .channel = "<|channel|>",
                                    .recipient = "to=",
                                    .body = "<|message|>",
                                    .ends = {"<|end|>", "<|call|>", "<|return|>"},
                                    .reasoning_channel = "analysis",
                                    .reasoning_head = "<|channel|>analysis<|message|>",
                                    .next = "<|start|>assistant",
                                    .answer_head = "<|channel|>final<|message|>"};

// Muse: to=self<|message|>…<|eom|><|start|>assistant to=NAME<|message|>… (a call) …<|eom|>, and at
// last to=user<|message|>…<|eot|>.
constexpr MessageSyntax kRecipients = {.start = "<|start|>",
                                       .recipient = "to=",
                                       .body = "<|message|>",
                                       .ends = {"<|eom|>", "<|eot|>"},
                                       .reasoning_recipient = "self",
                                       .answer_recipient = "user",
                                       .reasoning_head = " to=self<|message|>",
                                       .next = "<|start|>assistant",
                                       .answer_head = " to=user<|message|>"};

constexpr PairSyntax kXmlPairs = {
    .open = "<parameter=", .key_end = ">", .value_end = "</parameter>", .padding = "\n"};
constexpr PairSyntax kKeysAndValues = {.open = "<arg_key>",
                                       .key_end = "</arg_key>",
                                       .value_open = "<arg_value>",
                                       .value_end = "</arg_value>"};
constexpr PairSyntax kDsmlPairs = {.open = "<｜DSML｜parameter name=\"",
                                   .key_end = "\" string=\"true\">",
                                   .json_key_end = "\" string=\"false\">",
                                   .value_end = "</｜DSML｜parameter>"};

constexpr PairSyntax kTypedPairs = {.open = "<|open|>argument key=\"",
                                    .key_end = "\" type=\"string\"<|sep|>",
                                    .type_open = "\" type=\"",
                                    .type_end = "\"<|sep|>",
                                    .value_end = "<|close|>argument<|sep|>"};

// MiniMax M3 has this before each mark.
#define LOCKSTEP_MINIMAX "]<]minimax[>["
constexpr PairSyntax kNestedPairs = {.open = LOCKSTEP_MINIMAX "<",
                                     .key_end = ">",
                                     .value_end = LOCKSTEP_MINIMAX "</",
                                     .item_key = "item"};

// Signs that hold others come first.
constexpr CallSyntax kRows[] = {
    // Qwen 2.5 and 3, Hermes: <tool_call>{"name": …, "arguments": …}</tool_call>, again and again;
    // SmolLM 3, whose template asks for it and writes none.
    {.name = "hermes",
     .sign = "<tool_call>\n{\"name\": \"lockstep_probe\"",
     .tool_signs = {"<tool_call>\n{\"name\": <function-name>, \"arguments\": "
                    "<args-json-object>}\n</tool_call>"},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .arguments = "arguments",
     .line = "\n"},
    // Mistral of today: [TOOL_CALLS]NAME[ARGS]{…}, again and again; Small 3.2 writes an id between.
    {.name = "mistral-ids",
     .sign = "[TOOL_CALLS]lockstep_probe[CALL_ID]",
     .open = "[TOOL_CALLS]",
     .id_length = 9,
     .form = CallForm::kLiteral,
     .number_open = "[CALL_ID]",
     .number = "[a-zA-Z0-9]{9}",
     .name_end = "[ARGS]"},
    {.name = "mistral-names",
     .sign = "[TOOL_CALLS]lockstep_probe[ARGS]",
     .open = "[TOOL_CALLS]",
     .id_length = 9,
     .form = CallForm::kLiteral,
     .name_end = "[ARGS]"},
    // Mistral: [TOOL_CALLS][{"name": …, "arguments": …}, …].
    {.name = "mistral",
     .sign = "[TOOL_CALLS]",
     .open = "[TOOL_CALLS]",
     .list_open = "[",
     .separator = ", ",
     .close = "]",
     .arguments = "arguments",
     .id_length = 9},
    // Llama 4 as its template writes it: objects, behind <|python_start|> or alone.
    {.name = "llama-4",
     .sign = "<|python_end|>{\"name\": \"lockstep_probe\", \"parameters\":",
     .open = "<|python_start|>",
     .separator = "; ",
     .arguments = "parameters",
     .bare = true},
    // Llama 3.1 to 3.3: the turn is {"name": …, "parameters": …}, or has it behind <|python_tag|>;
    // several are written with semicolons.
    {.name = "llama-3",
     .sign = "{\"name\": \"lockstep_probe\", \"parameters\":",
     .open = "<|python_tag|>",
     .separator = "; ",
     .arguments = "parameters",
     .bare = true,
     .parallel = false},
    // LFM 2 and 2.5: <|tool_call_start|>[NAME(KEY=…, …), …]<|tool_call_end|>.
    {.name = "lfm2",
     .sign = "<|tool_call_start|>[lockstep_probe(",
     .tool_signs = {"List of tools: <|tool_list_start|>[", "List of tools: [{"},
     .open = "<|tool_call_start|>",
     .list_open = "[",
     .separator = ", ",
     .close = "]<|tool_call_end|>",
     .form = CallForm::kLiteral,
     .values = ValueSyntax::kPython},
    // Llama 3.2 and 4 under templates of the same: the turn is [NAME(KEY=…, …), …], or has it
    // behind
    // <|python_start|>.
    {.name = "pythonic",
     .sign = "[lockstep_probe(a=",
     .open = "<|python_start|>",
     .list_open = "[",
     .separator = ", ",
     .close = "]",
     .bare = true,
     .form = CallForm::kLiteral,
     .values = ValueSyntax::kPython},
    // Gemma 4: <|tool_call>call:NAME{KEY:…,…}<tool_call|>, again and again.
    {.name = "gemma-4",
     .sign = "<|tool_call>call:lockstep_probe{",
     .open = "<|tool_call>",
     .form = CallForm::kLiteral,
     .head = "call:",
     .call_end = "<tool_call|>",
     .values = ValueSyntax::kGemma},
    // Command R7B, A and later: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": …,
    // "parameters": …}, …]<|END_ACTION|>.
    {.name = "cohere",
     .sign = "{\"tool_call_id\": \"0\", \"tool_name\": \"lockstep_probe\"",
     .open = "<|START_ACTION|>",
     .list_open = "[",
     .separator = ", ",
     .close = "]<|END_ACTION|>",
     .arguments = "parameters",
     .name_key = "tool_name",
     .id_key = "tool_call_id"},
    // Command R and R+: a fence of Markdown behind "Action:".
    {.name = "cohere-fences",
     .sign = "Action:\n```json\n[\n    {\n        \"tool_name\": \"lockstep_probe\"",
     .open = "Action:\n```json\n",
     .list_open = "[",
     .separator = ", ",
     .close = "]```",
     .arguments = "parameters",
     .name_key = "tool_name"},
    // Granite 3: <|tool_call|>[{"name": …, "arguments": …}, …].
    {.name = "granite-3",
     .sign = "<|tool_call|>[{\"name\": \"lockstep_probe\"",
     .tool_signs = {"<|start_of_role|>available_tools<|end_of_role|>", "<|tool_call|>"},
     .open = "<|tool_call|>",
     .list_open = "[",
     .separator = ", ",
     .close = "]",
     .arguments = "arguments"},
    // One call a message: the marks of messages stand for those of groups.
    {.name = "harmony",
     .sign = " to=functions.lockstep_probe<|channel|>",
     .parallel = false,
     .form = CallForm::kLiteral,
     .head = "<|channel|>commentary to=",
     .prefix = "functions.",
     .name_end = " <|constrain|>json<|message|>",
     .messages = &kHarmony},
    // GLM 4.5 and later: <tool_call>NAME, then <arg_key>…</arg_key> and <arg_value>…</arg_value>.
    {.name = "glm",
     .sign = "<tool_call>lockstep_probe\n<arg_key>",
     .open = "<tool_call>",
     .form = CallForm::kPairs,
     .call_end = "</tool_call>",
     .pairs = kKeysAndValues,
     .line = "\n"},
    // GLM 4.7: the same on one line.
    {.name = "glm-line",
     .sign = "<tool_call>lockstep_probe<arg_key>",
     .open = "<tool_call>",
     .form = CallForm::kPairs,
     .call_end = "</tool_call>",
     .pairs = kKeysAndValues},
    // Seed-OSS: as Qwen3-Coder below, in marks of its own.
    {.name = "seed",
     .sign = "<seed:tool_call>\n<function=lockstep_probe>",
     .open = "<seed:tool_call>",
     .close = "</seed:tool_call>",
     .form = CallForm::kPairs,
     .head = "<function=",
     .name_end = ">",
     .call_end = "</function>",
     .pairs = {.open = "<parameter=", .key_end = ">", .value_end = "</parameter>"},
     .line = "\n"},
    // Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5:
    // <tool_call><function=NAME><parameter=KEY>…</parameter></function></tool_call>.
    {.name = "qwen-xml",
     .sign = "<tool_call>\n<function=lockstep_probe>",
     .open = "<tool_call>",
     .close = "</tool_call>",
     .form = CallForm::kPairs,
     .head = "<function=",
     .name_end = ">",
     .call_end = "</function>",
     .pairs = kXmlPairs,
     .line = "\n"},
    // Kimi K2: <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>,
    // again and again in a section.
    {.name = "kimi",
     .sign = "<|tool_calls_section_begin|><|tool_call_begin|>",
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .form = CallForm::kLiteral,
     .grouped = true,
     .head = "<|tool_call_begin|>",
     .prefix = "functions.",
     .number_open = ":",
     .number = "[0-9]{1,4}",
     .name_end = "<|tool_call_argument_begin|>",
     .call_end = "<|tool_call_end|>"},
    // Kimi K3: <|open|>call tool="NAME" index="1"<|sep|>, then the arguments, each with its type:
    // <|open|>argument key="KEY" type="string"<|sep|>…<|close|>argument<|sep|>.
    {.name = "kimi-3",
     .sign = "<|open|>call tool=\"lockstep_probe\"",
     .open = "<|open|>tools<|sep|>",
     .close = "<|close|>tools<|sep|>",
     .form = CallForm::kPairs,
     .grouped = true,
     .head = "<|open|>call tool=\"",
     .number_open = "\" index=\"",
     .number = "[1-9]",
     .name_end = "\"<|sep|>",
     .call_end = "<|close|>call<|sep|>",
     .pairs = kTypedPairs},
    // MiniMax M2: <invoke name="NAME"><parameter name="KEY">…</parameter></invoke> in a section.
    {.name = "minimax",
     .sign = "<minimax:tool_call>\n<invoke name=\"lockstep_probe\">",
     .open = "<minimax:tool_call>",
     .close = "</minimax:tool_call>",
     .form = CallForm::kPairs,
     .grouped = true,
     .head = "<invoke name=\"",
     .name_end = "\">",
     .call_end = "</invoke>",
     .pairs = {.open = "<parameter name=\"", .key_end = "\">", .value_end = "</parameter>"},
     .line = "\n"},
    // MiniMax M3: the same with a mark of its own before each tag, the key as the tag's name, and
    // lists and objects as tags within tags.
    {.name = "minimax-m3",
     .sign = LOCKSTEP_MINIMAX "<invoke name=\"lockstep_probe\">",
     .open = LOCKSTEP_MINIMAX "<tool_call>",
     .close = LOCKSTEP_MINIMAX "</tool_call>",
     .form = CallForm::kPairs,
     .grouped = true,
     .head = LOCKSTEP_MINIMAX "<invoke name=\"",
     .name_end = "\">",
     .call_end = LOCKSTEP_MINIMAX "</invoke>",
     .pairs = kNestedPairs,
     .line = "\n",
     .dense = true},
    // MiniCPM 5: <function name="NAME"><param name="KEY">…</param></function>, again and again;
    // texts of several lines, or with letters of XML, stand in a section of CDATA.
    {.name = "minicpm-5",
     .sign = "<function name=\"lockstep_probe\"><param name=\"",
     .open = "<function name=\"",
     .form = CallForm::kPairs,
     .name_end = "\">",
     .call_end = "</function>",
     .pairs = {.open = "<param name=\"",
               .key_end = "\">",
               .value_end = "</param>",
               .quoted_letters = "<&\n",
               .quote_open = "<![CDATA[",
               .quote_close = "]]>"},
     .line = "\n",
     .dense = true},
    // Muse: <atem:invoke name="NAME"><atem:parameter name="KEY">…</atem:parameter></atem:invoke>
    // between marks, in a message to the function.
    {.name = "muse",
     .sign = "<atem:function_calls>\n<atem:invoke name=\"lockstep_probe\">",
     .open = "<atem:function_calls>",
     .close = "</atem:function_calls>",
     .form = CallForm::kPairs,
     .grouped = true,
     .head = "<atem:invoke name=\"",
     .name_end = "\">",
     .call_end = "</atem:invoke>",
     .pairs = {.open = "<atem:parameter name=\"",
               .key_end = "\">",
               .value_end = "</atem:parameter>"},
     .line = "\n",
     .messages = &kRecipients},
    // DeepSeek V4 and V3.2: as MiniMax M2 in other marks, which say of each value whether it is
    // JSON.
    {.name = "deepseek-v4",
     .sign = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"lockstep_probe\">",
     .open = "<｜DSML｜tool_calls>",
     .close = "</｜DSML｜tool_calls>",
     .form = CallForm::kPairs,
     .grouped = true,
     .head = "<｜DSML｜invoke name=\"",
     .name_end = "\">",
     .call_end = "</｜DSML｜invoke>",
     .pairs = kDsmlPairs,
     .line = "\n"},
    {.name = "deepseek-pairs",
     .sign = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"lockstep_probe\">",
     .open = "<｜DSML｜function_calls>",
     .close = "</｜DSML｜function_calls>",
     .form = CallForm::kPairs,
     .grouped = true,
     .head = "<｜DSML｜invoke name=\"",
     .name_end = "\">",
     .call_end = "</｜DSML｜invoke>",
     .pairs = kDsmlPairs,
     .line = "\n"},
    // DeepSeek V3 and R1: the JSON in a fence of Markdown.
    {.name = "deepseek-fences",
     .sign = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>lockstep_probe",
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .form = CallForm::kLiteral,
     .grouped = true,
     .head = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .name_end = "\n```json\n",
     .call_end = "\n```<｜tool▁call▁end｜>"},
    // DeepSeek V3.1: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜> in a section.
    {.name = "deepseek",
     .sign = "<｜tool▁call▁begin｜>lockstep_probe<｜tool▁sep｜>",
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .form = CallForm::kLiteral,
     .grouped = true,
     .head = "<｜tool▁call▁begin｜>",
     .name_end = "<｜tool▁sep｜>",
     .call_end = "<｜tool▁call▁end｜>"},
    // Functionary 3.1: <function=NAME>{…}</function>.
    {.name = "functionary",
     .sign = "<function=lockstep_probe>{",
     .open = "<function=",
     .form = CallForm::kLiteral,
     .name_end = ">",
     .call_end = "</function>"},
    // Functionary 3.2: >>>NAME, and {…} in the next line, again and again. The prompt ends with the
    // first mark.
    {.name = "functionary-recipients",
     .sign = ">>>lockstep_probe\n",
     .open = ">>>",
     .separator = ">>>",
     .bare = true,
     .form = CallForm::kLiteral,
     .name_end = "\n",
     .answer_name = "all"},
    // Solar Open:
    // <|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{…}<|tool_call:end|>,
    // again and again in a section.
    {.name = "solar",
     .sign = "<|tool_call:name|>lockstep_probe<|tool_call:args|>",
     .open = "<|tool_calls|>",
     .close = "<|calls|>",
     .id_length = 10,
     .form = CallForm::kLiteral,
     .grouped = true,
     .head = "<|tool_call:begin|>",
     .id = "[a-z0-9]{10}",
     .id_end = "<|tool_call:name|>",
     .name_end = "<|tool_call:args|>",
     .call_end = "<|tool_call:end|>"},
    // Firefunction 2: functools[{"name": …, "arguments": …}, …].
    {.name = "firefunction",
     .sign = "functools[{\"name\": \"lockstep_probe\"",
     .open = "functools",
     .list_open = "[",
     .separator = ", ",
     .close = "]",
     .arguments = "arguments"},
    // MiniMax M1: objects in lines of their own between <tool_calls> and </tool_calls>.
    {.name = "minimax-m1",
     .sign = "<tool_calls>\n{\"name\": \"lockstep_probe\"",
     .open = "<tool_calls>",
     .close = "</tool_calls>",
     .arguments = "arguments",
     .grouped = true,
     .line = "\n"},
    // Apertus: <|tools_prefix|>[{NAME: {…}}, …]<|tools_suffix|>.
    {.name = "apertus",
     .sign = "<|tools_prefix|>[{\"lockstep_probe\":",
     .open = "<|tools_prefix|>",
     .list_open = "[",
     .separator = ", ",
     .close = "]<|tools_suffix|>",
     .form = CallForm::kLiteral,
     .head = "{\"",
     .name_end = "\": ",
     .call_end = "}"},
    // GigaChat 3.1 and 3: one object behind a mark.
    {.name = "gigachat",
     .sign = "<|function_call|>{\"name\": \"lockstep_probe\"",
     .open = "<|function_call|>",
     .arguments = "arguments",
     .parallel = false},
    {.name = "gigachat-role",
     .sign = "function call<|role_sep|>\n{\"name\": \"lockstep_probe\"",
     .open = "<|message_sep|>\n\nfunction call<|role_sep|>\n",
     .arguments = "arguments",
     .parallel = false},
    // Hunyuan 3: NAME, then keys and values as GLM has them, in marks of its own.
    {.name = "hunyuan-3",
     .sign = "<tool_call:opensource>lockstep_probe<tool_sep:opensource>",
     .open = "<tool_calls:opensource>",
     .close = "</tool_calls:opensource>",
     .form = CallForm::kPairs,
     .grouped = true,
     .head = "<tool_call:opensource>",
     .name_end = "<tool_sep:opensource>",
     .call_end = "</tool_call:opensource>",
     .pairs = {.open = "<arg_key:opensource>",
               .key_end = "</arg_key:opensource>",
               .value_open = "<arg_value:opensource>",
               .value_end = "</arg_value:opensource>"},
     .line = "\n"},
    // Apriel: <tool_calls>[{"name": …, "arguments": …}, …]</tool_calls>.
    {.name = "apriel",
     .sign = "<tool_calls>[{\"name\": \"lockstep_probe\"",
     .open = "<tool_calls>",
     .list_open = "[",
     .separator = ", ",
     .close = "]</tool_calls>",
     .arguments = "arguments"},
    // Nemotron Nano 2: <TOOLCALL>[{"name": …, "arguments": …}, …]</TOOLCALL>.
    {.name = "nemotron",
     .sign = "<TOOLCALL>[{\"name\": \"lockstep_probe\"",
     .open = "<TOOLCALL>",
     .list_open = "[",
     .separator = ", ",
     .close = "]</TOOLCALL>",
     .arguments = "arguments"},
};
#undef LOCKSTEP_MINIMAX

constexpr ReasoningMarks kReasoningMarks[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"<|channel>th"
     "ought",
     "<channel|>"},                                     // Gemma 4
    {"<|START_THINKING|>", "<|END_THINKING|>"},         // Cohere
    {"<think:opensource>", "</think:opensource>"},      // Hunyuan 3
    {"<|open|>think<|sep|>", "<|close|>think<|sep|>"},  // Kimi K3
    {"<mm:think>", "</mm:think>"},                      // MiniMax M3
    {"<|think|>", "<|end|><|begin|>assistant"},         // Solar Open
};

constexpr AnswerMarks kAnswerMarks[] = {
    {"<|START_RESPONSE|>", "<|END_RESPONSE|>"},  // Command R7B
    {"<|START_TEXT|>", "<|END_TEXT|>"},          // later ones of Cohere
    // Kimi K3
    {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"},
    {"<|content|>", "<|end|>"},                     // Solar Open
    {.open = "all\n", .close = "", .lead = ">>>"},  // Functionary 3.2
};

}  // namespace

std::span<const CallSyntax> call_syntaxes() {
  return kRows;
}

std::span<const ReasoningMarks> reasoning_marks() {
  return kReasoningMarks;
}

std::span<const AnswerMarks> answer_marks() {
  return kAnswerMarks;
}

}  // namespace lockstep
