#include "tests/server/api/common/call_cases.h"

namespace lockstep {
namespace {

std::vector<CallCase> nested_cases() {
  return {
      {"minimax-m3",
       "I look.]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"all\">]<]minimax[>[<text>12"
       "]<]minimax[>[</text>]<]minimax[>[<count>12]<]minimax[>[</count>]<]minimax[>[<is_on>true"
       "]<]minimax[>[</is_on>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"now\">"
       "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call> So.",
       "I look. So.",
       {"all({\"text\": \"12\", \"count\": 12, \"is_on\": true})", "now({})"}},
      // Lists and objects are tags within tags; the schema tells texts from numbers.
      {"minimax-m3",
       "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"all\">]<]minimax[>[<rows>\n"
       "]<]minimax[>[<item>]<]minimax[>[<name>7]<]minimax[>[</name>]<]minimax[>[<size>7"
       "]<]minimax[>[</size>]<]minimax[>[</item>]<]minimax[>[<item>]<]minimax[>[<name>\n"
       "]<]minimax[>[</name>]<]minimax[>[</item>\n]<]minimax[>[</rows>]<]minimax[>[<map>"
       "]<]minimax[>[<a>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[<item>1"
       "]<]minimax[>[</item>]<]minimax[>[</a>]<]minimax[>[</map>]<]minimax[>[<list>]<]minimax[>["
       "</list>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
       "",
       {"all({\"rows\": [{\"name\": \"7\", \"size\": 7}, {\"name\": \"\\n\"}], \"map\": {\"a\": "
        "[\"x\", 1]}, \"list\": []})"}},
      // A text may hold any mark but its own end, and JSON any at all.
      {"minimax-m3",
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"all\">]<]minimax[>[<text>a]<]minimax[>["
       "<b>]<]minimax[>[</c>]<]minimax[>[</text>]<]minimax[>[<map>{\"a\": \"]<]minimax[>[</map>\"}"
       "]<]minimax[>[</map>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
       "",
       {"all({\"text\": \"a]<]minimax[>[<b>]<]minimax[>[</c>\", \"map\": {\"a\": \"]<]minimax[>["
        "</map>\"}})"}},
      // The first of two with one name counts, within others as well.
      {"minimax-m3",
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"now\">]<]minimax[>[<a>]<]minimax[>[<b>1"
       "]<]minimax[>[</b>]<]minimax[>[<b>]<]minimax[>[<c>2]<]minimax[>[</c>]<]minimax[>[</b>"
       "]<]minimax[>[<d>3]<]minimax[>[</d>]<]minimax[>[</a>]<]minimax[>[<a>4]<]minimax[>[</a>"
       "]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
       "",
       {"now({\"a\": {\"b\": 1, \"d\": 3}})"}},
      // An end with another name makes it no call.
      {"minimax-m3",
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"now\">]<]minimax[>[<a>]<]minimax[>[<b>1"
       "]<]minimax[>[</b>]<]minimax[>[</c>",
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"now\">]<]minimax[>[<a>]<]minimax[>[<b>1"
       "]<]minimax[>[</b>]<]minimax[>[</c>"},
      {"minimax-m3", "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"other\">",
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"other\">"},
      {"minimax-m3", "]<]minimax[>[ and <tool_call>", "]<]minimax[>[ and <tool_call>"},
  };
}

std::vector<CallCase> quoted_cases() {
  return {
      {"minicpm-5",
       "Yes.\n<function name=\"all\"><param name=\"text\"><![CDATA[a <b>\n</param> ]] ]]></param>"
       "<param name=\"count\">3</param><param name=\"is_on\">True</param></function>\n"
       "<function name=\"now\"></function>",
       "Yes.",
       {"all({\"text\": \"a <b>\\n</param> ]] \", \"count\": 3, \"is_on\": true})", "now({})"}},
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\">a b</param><param "
       "name=\"map\"><![CDATA[{\"a\": "
       "\"<\"}]]></param><param name=\"unit\"><![CDATA[C]]></param><param name=\"code\">"
       "<![CDATA[]]></param></function>",
       "",
       {"all({\"text\": \"a b\", \"map\": {\"a\": \"<\"}, \"unit\": \"C\", \"code\": \"\"})"}},
      // A text may look like the begin of a section.
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\"><![CDAT]]></param><param "
       "name=\"maybe\"><</param>"
       "</function>",
       "",
       {"all({\"text\": \"<![CDAT]]>\", \"maybe\": \"<\"})"}},
      // White space around a section is none of the text; one may follow another, as XML has it.
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\">\n <![CDATA[ <a>]]&gt; ]]]]><![CDATA[>\n]]>\n"
       "</param><param name=\"maybe\"> <![CDATA[b]]> </param></function>",
       "",
       {"all({\"text\": \" <a>]]&gt; ]]>\\n\", \"maybe\": \"b\"})"}},
      // The template writes such a text so.
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\"><![CDATA[a[b[0]]>c]]></param></function>",
       "",
       {"all({\"text\": \"a[b[0]]>c\"})"}},
      // Sections within a text.
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\">  a <![CDATA[<b></param>]]> c</para "
       "<![CDATA[]]]]>m></param></function>",
       "",
       {"all({\"text\": \"  a <b></param> c</para ]]m>\"})"}},
      {"minicpm-5", "<function name=\"all\"><param name=\"text\">a <![CDATA[<b></param></function>",
       "<function name=\"all\"><param name=\"text\">a <![CDATA[<b></param></function>"},
      // A section that does not end hides no call behind it.
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\">a <![CDATA[b</param></function>\n"
       "<function name=\"all\"><param name=\"text\">c</param></function>",
       "<function name=\"all\"><param name=\"text\">a <![CDATA[b</param></function>",
       {"all({\"text\": \"c\"})"}},
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\"><![CDATA[b</param></function>\n"
       "<function name=\"all\"><param name=\"text\">c <![CDATA[d</param></function> So."
       "<function name=\"now\"></function>",
       "<function name=\"all\"><param name=\"text\"><![CDATA[b</param></function>\n"
       "<function name=\"all\"><param name=\"text\">c <![CDATA[d</param></function> So.",
       {"now({})"}},
      // Nothing in a section that ended is an end, whatever comes behind it.
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\">a <![CDATA[</param>]]> <![CDATA[b</param>"
       "<function name=\"now\"></function>",
       "<function name=\"all\"><param name=\"text\">a <![CDATA[</param>]]> <![CDATA[b</param>",
       {"now({})"}},
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\"><![CDATA[</param>]]]]><![CDATA[>b</param>"
       "<function name=\"now\"></function>",
       "<function name=\"all\"><param name=\"text\"><![CDATA[</param>]]]]><![CDATA[>b</param>",
       {"now({})"}},
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\"><![CDATA[a]]> \n <b]]></p ]]>\n </param>"
       "</function>",
       "",
       {"all({\"text\": \"a]]> \\n <b]]></p \"})"}},
      {"minicpm-5",
       "<function name=\"all\"><param name=\"text\"><![CDATA[a]]]]><![CDATA[></param>b]]></param>"
       "</function>",
       "",
       {"all({\"text\": \"a]]></param>b\"})"}},
      {"minicpm-5", "<function name=\"other\"></function>", "<function name=\"other\"></function>"},
      {"minicpm-5", "<function name=\"now\"><param name=\"a\"><![CDATA[x</param></function>",
       "<function name=\"now\"><param name=\"a\"><![CDATA[x</param></function>"},
  };
}

std::vector<CallCase> recipient_cases() {
  return {
      {"muse",
       " to=self<|message|>Hm.<|eom|><|start|>assistant to=all<|message|><atem:function_calls>\n"
       "<atem:invoke name=\"all\">\n<atem:parameter name=\"text\"> a </atem:parameter>\n"
       "<atem:parameter name=\"list\">[1]</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"
       "<|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n<atem:invoke "
       "name=\"now\">\n</atem:invoke>\n</atem:function_calls><|eot|>",
       "",
       {"all({\"text\": \" a \", \"list\": [1]})", "now({})"},
       "Hm."},
      {"muse", " to=user<|message|>Four.<|eot|>", "Four."},
      {"muse", "<|message|>Four.", "Four."},
      {"muse",
       "to=self<|message|>a<|eom|><|start|>assistant to=self<|message|>b<|eom|><|start|>assistant "
       "to=user<|message|> <atem:function_calls> is a mark.",
       " <atem:function_calls> is a mark.",
       {},
       "a\n\nb"},
      // Several calls in one message, and text behind them.
      {"muse",
       " to=now<|message|><atem:function_calls><atem:invoke "
       "name=\"now\"></atem:invoke><atem:invoke "
       "name=\"now\"></atem:invoke></atem:function_calls><|eom|><|start|>assistant "
       "to=user<|message|>Done.",
       "Done.",
       {"now({})", "now({})"}},
      // Text that is no call stays, with its head.
      {"muse", " to=now<|message|>Hello<|eot|>", "to=now<|message|>Hello"},
      {"muse", " to=now<|message|><atem:function_calls>x",
       "to=now<|message|><atem:function_calls>x"},
      {"muse",
       " to=other<|message|><atem:function_calls><atem:invoke name=\"other\"></atem:invoke>",
       "to=other<|message|><atem:function_calls><atem:invoke name=\"other\"></atem:invoke>"},
      {"muse", " to=sel", ""},
      {"muse", "to=be or not", "to=be or not"},
      {"functionary-recipients",
       "now\n{\"a\": \">>>\"}>>>all\n",
       ">>>all",
       {"now({\"a\": \">>>\"})"}},
      {"functionary-recipients",
       "Look: >>>now\n{}>>>all\n{\"count\": 1}",
       "Look:",
       {"now({})", "all({\"count\": 1})"}},
      {"functionary-recipients", "now I know: >>> print(1)\n1", "now I know: >>> print(1)\n1"},
      {"functionary-recipients", "now", "now"},
      {"functionary-recipients", "other\n{}", "other\n{}"},
  };
}

std::vector<CallCase> numbered_cases() {
  return {
      {"solar",
       "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>now<|tool_call:args|>{\"a\": "
       "\"<|tool_call:end|>\"}<|tool_call:end|><|tool_call:begin|>x<|tool_call:name|>all"
       "<|tool_call:args|>{}<|tool_call:end|><|calls|>",
       "",
       {"now({\"a\": \"<|tool_call:end|>\"})", "all({})"}},
      {"solar", "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>other<|tool_call:args|>{}",
       "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>other<|tool_call:args|>{}"},
      {"solar", "<|tool_calls|><|tool_call:begin|>now<|tool_call:args|>{}",
       "<|tool_calls|><|tool_call:begin|>now<|tool_call:args|>{}"},
      {"firefunction",
       "Sure. functools[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"all\", \"arguments\": "
       "{\"count\": 1}}]",
       "Sure.",
       {"now({})", "all({\"count\": 1})"}},
      {"firefunction", "functools[0] and functools", "functools[0] and functools"},
  };
}

}  // namespace

std::vector<CallCase> recent_call_cases() {
  std::vector<CallCase> all = nested_cases();
  for (const auto& some : {quoted_cases(), recipient_cases(), numbered_cases()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace lockstep
