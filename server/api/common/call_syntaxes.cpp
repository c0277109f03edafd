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
                                    .answer_head = "<|channel|>final<|message|>"};

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

// Signs that hold others come first.
constexpr CallSyntax kRows[] = {
    // Qwen 2.5 and 3, Hermes: <tool_call>{"name": …, "arguments": …}</tool_call>, again and again.
    {.name = "hermes",
     .sign = "<tool_call>\n{\"name\": \"lockstep_probe\"",
     .open = "<tool_call>",
     .close = "</tool_call>",
     .arguments = "arguments"},
    // Mistral of today: [TOOL_CALLS]NAME[ARGS]{…}, again and again; Small 3.2 writes an id between.
    {.name = "mistral-ids",
     .sign = "[TOOL_CALLS]lockstep_probe[CALL_ID]",
     .open = "[TOOL_CALLS]",
     .id_length = 9,
     .form = CallForm::kJson,
     .number_open = "[CALL_ID]",
     .number = "[a-zA-Z0-9]{9}",
     .name_end = "[ARGS]"},
    {.name = "mistral-names",
     .sign = "[TOOL_CALLS]lockstep_probe[ARGS]",
     .open = "[TOOL_CALLS]",
     .id_length = 9,
     .form = CallForm::kJson,
     .name_end = "[ARGS]"},
    // Mistral: [TOOL_CALLS][{"name": …, "arguments": …}, …].
    {.name = "mistral",
     .sign = "[TOOL_CALLS]",
     .open = "[TOOL_CALLS]",
     .list_open = "[",
     .separator = ",",
     .close = "]",
     .arguments = "arguments",
     .id_length = 9},
    // Llama 3.1 to 3.3: the turn is {"name": …, "parameters": …}, or has it behind <|python_tag|>;
    // several are written with semicolons.
    {.name = "llama-3",
     .sign = "{\"name\": \"lockstep_probe\", \"parameters\":",
     .open = "<|python_tag|>",
     .separator = ";",
     .arguments = "parameters",
     .bare = true,
     .parallel = false},
    // One call a message: the marks of messages stand for those of groups.
    {.name = "harmony",
     .sign = " to=functions.lockstep_probe<|channel|>",
     .parallel = false,
     .form = CallForm::kJson,
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
     .form = CallForm::kJson,
     .grouped = true,
     .head = "<|tool_call_begin|>",
     .prefix = "functions.",
     .number_open = ":",
     .number = "[0-9]{1,4}",
     .name_end = "<|tool_call_argument_begin|>",
     .call_end = "<|tool_call_end|>"},
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
    // DeepSeek V4 and V3.2: the same in other marks, which say of each value whether it is JSON.
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
     .form = CallForm::kJson,
     .grouped = true,
     .head = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .name_end = "\n```json\n",
     .call_end = "\n```<｜tool▁call▁end｜>"},
    // DeepSeek V3.1: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜> in a section.
    {.name = "deepseek",
     .sign = "<｜tool▁call▁begin｜>lockstep_probe<｜tool▁sep｜>",
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .form = CallForm::kJson,
     .grouped = true,
     .head = "<｜tool▁call▁begin｜>",
     .name_end = "<｜tool▁sep｜>",
     .call_end = "<｜tool▁call▁end｜>"},
    // Functionary 3.1: <function=NAME>{…}</function>.
    {.name = "functionary",
     .sign = "<function=lockstep_probe>{",
     .open = "<function=",
     .form = CallForm::kJson,
     .name_end = ">",
     .call_end = "</function>"},
    // Apriel: <tool_calls>[{"name": …, "arguments": …}, …]</tool_calls>.
    {.name = "apriel",
     .sign = "<tool_calls>[{\"name\": \"lockstep_probe\"",
     .open = "<tool_calls>",
     .list_open = "[",
     .separator = ",",
     .close = "]</tool_calls>",
     .arguments = "arguments"},
    // Nemotron Nano 2: <TOOLCALL>[{"name": …, "arguments": …}, …]</TOOLCALL>.
    {.name = "nemotron",
     .sign = "<TOOLCALL>[{\"name\": \"lockstep_probe\"",
     .open = "<TOOLCALL>",
     .list_open = "[",
     .separator = ",",
     .close = "]</TOOLCALL>",
     .arguments = "arguments"},
};

constexpr ReasoningMarks kReasoningMarks[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
};

}  // namespace

std::span<const CallSyntax> call_syntaxes() {
  return kRows;
}

std::span<const ReasoningMarks> reasoning_marks() {
  return kReasoningMarks;
}

}  // namespace lockstep
