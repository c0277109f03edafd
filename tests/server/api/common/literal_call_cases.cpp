#include "tests/server/api/common/call_cases.h"

namespace lockstep {
namespace {

std::vector<CallCase> python_cases() {
  return {
      {"lfm2",
       "Let me see. <|tool_call_start|>[all(text=\"a, b\", count=3, is_on=True), now()]"
       "<|tool_call_end|>",
       "Let me see.",
       {"all({\"text\": \"a, b\", \"count\": 3, \"is_on\": true})", "now({})"}},
      // As the family's template writes it: quotes within a text are not escaped.
      {"lfm2",
       "<|tool_call_start|>[all(text='it's \"so\"\n', list=[1, {'k': 'v'}, 'z'], none=None, "
       "share=1.5, map={\"p\": true})]<|tool_call_end|>Done.",
       "Done.",
       {"all({\"text\": \"it's \\\"so\\\"\\n\", \"list\": [1, {\"k\": \"v\"}, \"z\"], \"none\": "
        "null, \"share\": 1.5, \"map\": {\"p\": true}})"}},
      {"lfm2",
       "<|tool_call_start|> [ now ( a = 'x\\n\\'\\x41\\u00e9\\U0001f600\\q' , b = -.5 , c = "
       "+1_000, "
       "d = [ ], ) ] <|tool_call_end|>",
       "",
       {"now({\"a\": \"x\\n'\\u0041\\u00e9\xF0\x9F\x98\x80\\\\q\", \"b\": -0.5, \"c\": 1000, "
        "\"d\": []})"}},
      {"lfm2", "<|tool_call_start|>[other(a=1)]<|tool_call_end|>",
       "<|tool_call_start|>[other(a=1)]<|tool_call_end|>"},
      {"lfm2", "<|tool_call_start|>[now]<|tool_call_end|>",
       "<|tool_call_start|>[now]<|tool_call_end|>"},
      {"lfm2", "<|tool_call_start|>[now(1)]<|tool_call_end|>",
       "<|tool_call_start|>[now(1)]<|tool_call_end|>"},
      {"lfm2", "<|tool_call_start|>[now(a=x)]<|tool_call_end|>",
       "<|tool_call_start|>[now(a=x)]<|tool_call_end|>"},
      {"lfm2", "<|tool_call_start|>[now(a='x", "<|tool_call_start|>[now(a='x"},
      {"lfm2", "[now()] is a list", "[now()] is a list"},
      {"pythonic",
       "[all(text='Bern', unit=\"C\"), now()]",
       "",
       {"all({\"text\": \"Bern\", \"unit\": \"C\"})", "now({})"}},
      {"pythonic", "\n<|python_start|>[now(a=1)]", "", {"now({\"a\": 1})"}},
      {"pythonic", "[1, 2] and [now](there)", "[1, 2] and [now](there)"},
      {"pythonic", "[now, and then]", "[now, and then]"},
      {"pythonic", "See [now()]", "See [now()]"},
      {"pythonic", "[", "["},
  };
}

std::vector<CallCase> gemma_cases() {
  return {
      {"gemma-4",
       "I look.<|tool_call>call:all{count:3,is_on:true,list:[1,{k:<|\"|>v<|\"|>},<|\"|>z<|\"|>],"
       "none:null,share:-1.5,text:<|\"|>it's {\"so\"},\n<tool_call|>\\<|\"|>}<tool_call|>"
       "<|tool_call>call:now{}<tool_call|>",
       "I look.",
       {"all({\"count\": 3, \"is_on\": true, \"list\": [1, {\"k\": \"v\"}, \"z\"], \"none\": null, "
        "\"share\": -1.5, \"text\": \"it's {\\\"so\\\"},\\n<tool_call|>\\\\\"})",
        "now({})"}},
      {"gemma-4",
       "<|tool_call>call:now{<|\"|>a b<|\"|>: None, c:\"plain \\\"\"}<tool_call|>",
       "",
       {"now({\"a b\": null, \"c\": \"plain \\\"\"})"}},
      {"gemma-4", "<|tool_call>call:other{}<tool_call|>", "<|tool_call>call:other{}<tool_call|>"},
      {"gemma-4", "<|tool_call>call:now<tool_call|>", "<|tool_call>call:now<tool_call|>"},
      {"gemma-4", "<|tool_call>now{}", "<|tool_call>now{}"},
      {"gemma-4", "<|tool_call>call:now{a:<b}", "<|tool_call>call:now{a:<b}"},
      {"gemma-4", "call:now{}", "call:now{}"},
      {"gemma-4", "<|tool_call>call:now{a:<|\"|>x", "<|tool_call>call:now{a:<|\"|>x"},
  };
}

std::vector<CallCase> list_cases() {
  return {
      {"cohere",
       "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": "
       "{}},"
       "\n    {\"tool_call_id\": \"1\", \"tool_name\": \"all\", \"parameters\": {\"count\": 1}}\n]"
       "<|END_ACTION|>",
       "",
       {"now({})", "all({\"count\": 1})"}},
      {"cohere", "<|START_ACTION|>[{\"name\": \"now\", \"parameters\": {}}]<|END_ACTION|>",
       "<|START_ACTION|>[{\"name\": \"now\", \"parameters\": {}}]<|END_ACTION|>"},
      {"cohere-fences",
       "I will look.\nAction:\n```json\n[\n    {\n        \"tool_name\": \"all\",\n        "
       "\"parameters\": {\n            \"text\": \"]```\"\n        }\n    }\n]\n```\n",
       "I will look.",
       {"all({\n            \"text\": \"]```\"\n        })"}},
      {"granite-3",
       "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"all\", \"arguments\": "
       "{\"count\": 2}}]",
       "",
       {"now({})", "all({\"count\": 2})"}},
      {"minimax-m1",
       "<tool_calls>\n{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"all\", \"arguments\": "
       "{\"count\": 2}}\n</tool_calls> So.",
       " So.",
       {"now({})", "all({\"count\": 2})"}},
      {"apertus",
       "<|tools_prefix|>[{\"now\": {}}, {\"all\": {\"text\": \"}]\"}}]<|tools_suffix|>",
       "",
       {"now({})", "all({\"text\": \"}]\"})"}},
      {"apertus", "<|tools_prefix|>[{\"other\": {}}]<|tools_suffix|>",
       "<|tools_prefix|>[{\"other\": {}}]<|tools_suffix|>"},
      {"gigachat",
       "One.<|function_call|>{\"name\": \"now\", \"arguments\": {\"a\": 1}}",
       "One.",
       {"now({\"a\": 1})"}},
      {"gigachat-role",
       "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}",
       "",
       {"now({})"}},
      {"hunyuan-3",
       "<tool_calls:opensource>\n<tool_call:opensource>all<tool_sep:opensource>\n"
       "<arg_key:opensource>text</arg_key:opensource>\n<arg_value:opensource>1</"
       "arg_value:opensource>"
       "\n</tool_call:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n"
       "</tool_call:opensource>\n</tool_calls:opensource>",
       "",
       {"all({\"text\": \"1\"})", "now({})"}},
      {"kimi-3",
       "<|open|>tools<|sep|><|open|>call tool=\"all\" index=\"1\"<|sep|><|open|>argument "
       "key=\"text\" type=\"string\"<|sep|>\"1\"<|close|>argument<|sep|><|open|>argument "
       "key=\"count\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>"
       "<|open|>call tool=\"now\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
       "",
       {"all({\"text\": \"\\\"1\\\"\", \"count\": 1})", "now({})"}},
      {"llama-4",
       "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"all\", \"parameters\": {\"count\": "
       "1}}",
       "",
       {"now({})", "all({\"count\": 1})"}},
      {"llama-4",
       "<|python_start|>{\"name\": \"now\", \"parameters\": {\"a\": 2}}",
       "",
       {"now({\"a\": 2})"}},
  };
}

}  // namespace

std::vector<CallCase> literal_call_cases() {
  std::vector<CallCase> all = python_cases();
  for (const auto& some : {gemma_cases(), list_cases()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<CallCase> faulty_call_cases() {
  return {
      // A quote that does not end hides neither the value's end nor what follows.
      {"qwen-xml",
       "<tool_call>\n<function=now>\n<parameter=a>\n\"Hello\n</parameter>\n<parameter=b>\n[1, \"x\n"
       "</parameter>\n</function>\n</tool_call>\nSo.",
       "\nSo.",
       {"now({\"a\": \"\\\"Hello\", \"b\": \"[1, \\\"x\"})"}},
      {"glm-line",
       "<tool_call>now<arg_key>a</arg_key><arg_value>\"x</arg_value><arg_key>b</arg_key><arg_value>"
       "\"y\"</arg_value></tool_call><tool_call>now</tool_call>",
       "",
       {"now({\"a\": \"\\\"x\", \"b\": \"y\"})", "now({})"}},
      {"glm-line",
       "<tool_call>now<arg_key>a</arg_key><arg_value>\"x</arg_value></tool_call>",
       "",
       {"now({\"a\": \"\\\"x\"})"}},
      {"glm-line",
       "<tool_call>now<arg_key>a</arg_key><arg_value>{'k': \"v}</arg_value></tool_call>",
       "",
       {"now({\"a\": \"{'k': \\\"v}\"})"}},
      {"minimax",
       "<minimax:tool_call>\n<invoke name=\"all\">\n<parameter name=\"text\">a \"b</parameter>\n"
       "<parameter name=\"list\">[\"</parameter>\", \"]\"]</parameter>\n</invoke>\n"
       "</minimax:tool_call>",
       "",
       {"all({\"text\": \"a \\\"b\", \"list\": [\"</parameter>\", \"]\"]})"}},
      // Behind a value of JSON there is nothing but its end.
      {"glm-line",
       "<tool_call>now<arg_key>a</arg_key><arg_value>\"x\" and \"y\"</arg_value></tool_call>",
       "",
       {"now({\"a\": \"\\\"x\\\" and \\\"y\\\"\"})"}},
      // A call whose arguments break off ends at its mark, and the next one is read.
      {"kimi",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>"
       "{\"a\": \"x}<|tool_call_end|> "
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:1"
       "<|tool_call_argument_begin|>{\"a\": \"y\"}<|tool_call_end|><|tool_calls_section_end|>",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>"
       "{\"a\": \"x}<|tool_call_end|>",
       {"now({\"a\": \"y\"})"}},
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": "
       "\"x}}</tool_call><tool_call>{\"name\": "
       "\"now\", \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"x}}</tool_call>",
       {"now({})"}},
      {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"x}}</tool_call> So.",
       "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"x}}</tool_call> So."},
      {"harmony",
       "<|channel|>commentary to=functions.now<|message|>{\"a\": \"x}<|call|><|start|>assistant"
       "<|channel|>final<|message|>So.",
       "<|channel|>commentary to=functions.now<|message|>{\"a\": \"x}\n\nSo."},
      // A name that comes twice counts once: the first one does, in every syntax.
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1, \"b\": {\"c\": [1], \"c\": "
       "{\"d\": "
       "\"}\"}}, \"\\u0061\": [2, {\"b\": 3}], \"e\": 4}}</tool_call>",
       "",
       {"now({\"a\": 1, \"b\": {\"c\": [1]}, \"e\": 4})"}},
      // The members of a call itself as well.
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"name\": \"now\", \"arguments\": {\"a\": 1}, \"id\": 1, "
       "\"arguments\": {\"a\": \"}\", \"a\": 2}, \"id\": {\"b\": 2}, \"parameters\": 3 "
       "}</tool_call>",
       "",
       {"now({\"a\": 1})"}},
      {"hermes",
       "<tool_call>{\"arguments\": {}, \"arguments\": \"x\", \"name\": \"all\"}</tool_call>",
       "",
       {"all({})"}},
      {"hermes", "<tool_call>{\"name\": \"now\", \"name\": \"all\", \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"now\", \"name\": \"all\", \"arguments\": {}}</tool_call>"},
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": {}, \"arguments\": {\"a\" 1}}</tool_call>",
       "<tool_call>{\"name\": \"now\", \"arguments\": {}, \"arguments\": {\"a\" 1}}</tool_call>"},
      {"kimi",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>"
       "{\"a\": 1, \"a\": 2}<|tool_call_end|><|tool_calls_section_end|>",
       "",
       {"now({\"a\": 1})"}},
      {"glm-line",
       "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>"
       "{\"b\": 2}</arg_value><arg_key>c</arg_key><arg_value>{\"d\": 3, \"d\": 4}</arg_value>"
       "</tool_call>",
       "",
       {"now({\"a\": 1, \"c\": {\"d\": 3}})"}},
      {"qwen-xml",
       "<tool_call>\n<function=all>\n<parameter=text>\na\n</parameter>\n<parameter=text>\nb\n"
       "</parameter>\n</function>\n</tool_call>",
       "",
       {"all({\"text\": \"a\"})"}},
      {"lfm2",
       "<|tool_call_start|>[now(a=1, a=[2], b={'c': 1, 'c': 2})]<|tool_call_end|>",
       "",
       {"now({\"a\": 1, \"b\": {\"c\": 1}})"}},
      {"gemma-4",
       "<|tool_call>call:now{a:{b:1,b:2},a:<|\"|>x<|\"|>,c:3}<tool_call|>",
       "",
       {"now({\"a\": {\"b\": 1}, \"c\": 3})"}},
  };
}

}  // namespace lockstep
