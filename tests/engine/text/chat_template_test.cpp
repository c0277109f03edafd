// Chat templates against Python's jinja2, as the transformers library sets it up: the cases and
// what must come of them are made by tests/fixtures/make_template_cases.py.
#include "engine/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/text/jinja/render.h"
#include "tests/engine/text/counted_steps.h"
#include "tests/paths.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// LOCKSTEP_TEMPLATES: a folder of other templates, with their cases.
std::filesystem::path template_folder() {
  const char* const other = std::getenv("LOCKSTEP_TEMPLATES");
  if (other != nullptr) return other;
  return std::filesystem::path(source_dir()) / "tests/fixtures/chat_templates";
}

const ordered_json& reference() {
  static const ordered_json cases =
      ordered_json::parse(read_file(template_folder() / "template_cases.json"));
  return cases;
}

Result<std::string> render(std::string source, const ordered_json& variables,
                           const TemplateLimits& limits = {}) {
  auto compiled = ChatTemplate::compile(std::move(source), limits);
  if (!compiled) return std::unexpected(compiled.error());
  auto rendered = compiled->render(variables);
  if (!rendered) return std::unexpected(rendered.error());
  return std::move(rendered->text);
}

std::string error_of(std::string source, const TemplateLimits& limits = {},
                     const ordered_json& variables = ordered_json::object()) {
  const auto result = render(std::move(source), variables, limits);
  return result ? "no error, but a text of " + std::to_string(result->size()) + " bytes"
                : result.error().message;
}

uint64_t steps_of(std::string source) {
  const CountedSteps steps;
  EXPECT_TRUE(render(std::move(source), ordered_json::object()));
  return steps.count();
}

// The text, or the error where jinja2 raises.
void expect_as_jinja2(const ordered_json& test_case, const std::string& source) {
  SCOPED_TRACE("template: " + source.substr(0, 300));
  const auto name = test_case["variables"].get<std::string>();
  SCOPED_TRACE("variables: " + name);
  const auto result = render(source, reference()["variables"][name]);
  if (test_case.contains("text")) {
    ASSERT_TRUE(result.has_value()) << result.error().message;
    EXPECT_EQ(*result, test_case["text"].get<std::string>());
    return;
  }
  ASSERT_FALSE(result.has_value()) << *result;
  EXPECT_THAT(result.error().message, HasSubstr(test_case["error"].get<std::string>()));
  EXPECT_EQ(result.error().kind, ErrorKind::kInvalidInput);
}

// Whole stretches of 256, so that a short message's are none.
TEST(ChatTemplate, what_a_rendering_costs_is_told_in_steps) {
  const uint64_t steps = steps_of("{% for i in range(20000) %}a{% endfor %}");
  EXPECT_GE(steps, 20'000U - 255);
  EXPECT_LT(steps, 200'000U);
  EXPECT_EQ(steps_of("{% for i in range(20000) %}a{% endfor %}"), steps);
  EXPECT_EQ(steps_of("{{ 'a' }}"), 0U);
  EXPECT_GE(steps_of("{{ 'a' * 1000000 }}"), 1'000'000U / 64 - 255);  // one step takes many
}

// A list of 100,000 values has 40 bytes for each at least.
TEST(ChatTemplate, what_a_rendering_holds_is_told_while_it_holds_it) {
  for (const uint64_t limit : {uint64_t{64} << 20U, uint64_t{1} << 20U}) {
    const CountedSteps counted;
    const auto text = render(
        "{% set n = namespace(l=[]) %}{% for i in range(2000) %}{% set n.l = n.l + [i] * 50 %}"
        "{% endfor %}{{ n.l|length }}",
        ordered_json::object(), {.steps = uint64_t{1} << 40U, .memory_bytes = limit});
    EXPECT_EQ(text.has_value(), limit > uint64_t{1} << 20U);
    EXPECT_GT(counted.most_bytes(), std::min(limit / 2, uint64_t{4'000'000}));
    EXPECT_LE(counted.most_bytes(), limit);
    EXPECT_EQ(counted.held_bytes, 0U);
  }
}

TEST(ChatTemplate, whole_templates_render_every_conversation_as_jinja2_does) {
  const std::filesystem::path folder = template_folder();
  size_t count = 0;
  for (const auto& test_case : reference()["cases"]) {
    if (!test_case.contains("file")) continue;
    SCOPED_TRACE(test_case["file"].get<std::string>());
    expect_as_jinja2(test_case, read_file(folder / test_case["file"].get<std::string>()));
    ++count;
  }
  EXPECT_GT(count, 500U);
}

TEST(ChatTemplate, every_part_of_the_language_works_as_in_jinja2) {
  size_t count = 0;
  for (const auto& test_case : reference()["cases"]) {
    if (!test_case.contains("source")) continue;
    expect_as_jinja2(test_case, test_case["source"].get<std::string>());
    ++count;
  }
  EXPECT_GT(count, 800U);
}

TEST(ChatTemplate, an_exception_of_the_template_is_its_message_and_nothing_else) {
  EXPECT_EQ(error_of("\n\n{{ raise_exception('No such role: ' ~ 'x') }}"), "No such role: x");
}

TEST(ChatTemplate, errors_name_the_line) {
  EXPECT_THAT(error_of("a\nb\n{{ missing.x }}"), HasSubstr("line 3: 'missing' is undefined"));
  EXPECT_THAT(error_of("a\n{% for x in [1] %}\n{{ 1 + 'a' }}{% endfor %}"), HasSubstr("line 3"));
  EXPECT_THAT(error_of("{# a\nb #}\n{{ 1 +\n }}"), HasSubstr("line 4"));
  EXPECT_THAT(error_of("a\r\nb\r\n{% nosuch %}"), HasSubstr("line 3"));
  EXPECT_THAT(error_of("a\n{{ 'x'|nosuch }}"), HasSubstr("line 2"));
  EXPECT_THAT(error_of("{% if 1 %}\n\n"), HasSubstr("endif"));
}

TEST(ChatTemplate, integers_beyond_64_bits_are_errors) {
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}"), HasSubstr("overflow"));
  EXPECT_THAT(error_of("{{ -9223372036854775807 - 2 }}"), HasSubstr("overflow"));
  EXPECT_THAT(error_of("{{ 2 ** 64 }}"), HasSubstr("overflow"));
  EXPECT_THAT(error_of("{{ (-9223372036854775807 - 1) // -1 }}"), HasSubstr("overflow"));
  EXPECT_THAT(error_of("{{ (-9223372036854775807 - 1)|abs }}"), HasSubstr("overflow"));
  EXPECT_THAT(error_of("{{ 9223372036854775808 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("{{ x }}", {}, {{"x", 18446744073709551615U}}), HasSubstr("64 bits"));
}

TEST(ChatTemplate, a_template_or_a_variable_that_is_not_utf8_does_no_harm) {
  EXPECT_THAT(error_of("a\xff"), HasSubstr("UTF-8"));
  const auto text = render("{{ x|upper }}{{ x|length }}", {{"x", "a\xff"}});
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(*text, "A\uFFFD2");
}

TEST(ChatTemplate, strftime_now_shows_the_given_clock) {
  const TemplateLimits limits;
  const auto program =
      jinja::compile("{{ strftime_now('%d %b %Y|%H:%M:%S|%A %j|%f|%z|%Z|%%|é%-d') }}", limits);
  ASSERT_TRUE(program.has_value());
  const jinja::Clock clock = [] {
    jinja::LocalTime time;
    time.calendar.tm_year = 124;
    time.calendar.tm_mon = 6;
    time.calendar.tm_mday = 4;
    time.calendar.tm_hour = 9;
    time.calendar.tm_min = 5;
    time.calendar.tm_sec = 7;
    time.calendar.tm_wday = 4;
    time.calendar.tm_yday = 185;
    time.microseconds = 42;
    return time;
  };
  const auto text = jinja::render(*program, limits, ordered_json::object(), clock);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_EQ(text->text, "04 Jul 2024|09:05:07|Thursday 186|000042|||%|é4");
}

TEST(ChatTemplate, the_local_clock_is_read) {
  const auto year = render("{{ strftime_now('%Y')|int }}", ordered_json::object());
  ASSERT_TRUE(year.has_value());
  EXPECT_GE(std::stoi(*year), 2024);
}

TEST(ChatTemplate, one_template_renders_in_several_threads) {
  const auto compiled =
      ChatTemplate::compile("{% for m in ms %}{{ 'x' ~ m|upper }}{% endfor %}{{ 'é'.upper() }}");
  ASSERT_TRUE(compiled.has_value());
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (size_t index = 0; index < texts.size(); ++index) {
    threads.emplace_back([&, index] {
      for (int round = 0; round < 100; ++round) {
        texts[index] = compiled->render({{"ms", {"a", "b", std::to_string(index)}}})
                           .value_or(TracedText())
                           .text;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t index = 0; index < texts.size(); ++index) {
    EXPECT_EQ(texts[index], "xAxBx" + std::to_string(index) + "É");
  }
}

TEST(ChatTemplateBudget, steps_end_long_loops) {
  const TemplateLimits limits = {.steps = tried_cases(TemplateLimits().steps)};
  for (const char* source :
       {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{{ '' }}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% set x = ('a' * 1000000)|length %}{% endfor %}",
        "{% for i in range(100000) %}{% set x = 'a' * 100000 in 'b' * 1000000 %}{% endfor %}",
        "{% for i in range(100000) %}{% set x = range(100000)|list|length %}{% endfor %}",
        "{% set x = ('a,' * 3000000).split(',') %}",
        "{% for i in range(99999) %}{% set x = ('ab' * 100000).rfind('b' * 1000) %}{% endfor %}"}) {
    EXPECT_THAT(error_of(source, limits), HasSubstr("budget")) << source;
  }
  EXPECT_THAT(error_of("{% for i in range(1000) %}{{ i }}{% endfor %}", {.steps = 100}),
              HasSubstr("budget of 100 steps"));
}

TEST(ChatTemplateBudget, output_is_bounded) {
  EXPECT_THAT(error_of("{% for i in range(10000) %}{{ 'a' * 1000 }}{% endfor %}"),
              HasSubstr("output budget"));
  EXPECT_THAT(error_of("12345678901", {.output_bytes = 10}), HasSubstr("output budget of 10"));
  const auto fits = render("1234567890", ordered_json::object(), {.output_bytes = 10});
  ASSERT_TRUE(fits.has_value());
  EXPECT_EQ(*fits, "1234567890");
}

TEST(ChatTemplateBudget, memory_is_bounded) {
  for (const char* source :
       {"{{ 'a' * 1073741824 }}",
        "{{ 1073741824 * 'a' }}",
        "{{ [1] * 1000000000 }}",
        "{{ (1, 2) * 4611686018427387904 }}",
        "{{ 'abc' * 9223372036854775807 }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x'.zfill(999999999) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%.999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '%-1000000000s' % 'a' }}",
        "{{ 'a\nb'|indent(1000000000) }}",
        "{{ [1]|tojson(indent=1000000000) }}",
        "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
        "{{ ('x' * 100000).join('a' * 100000) }}",
        "{{ '\t'.expandtabs(1000000000) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}"
        "{% endset %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='ab') %}"
        "{% for i in range(99) %}{% set ns.x = m(ns.x) %}{% endfor %}"}) {
    // A template that copies much on its way may spend its steps first.
    EXPECT_THAT(error_of(source), HasSubstr("budget")) << source;
  }
  EXPECT_THAT(error_of("{{ x|length }}", {.memory_bytes = 1000}, {{"x", std::string(2000, 'a')}}),
              HasSubstr("memory budget"));
}

TEST(ChatTemplateBudget, memory_that_is_let_go_is_free_again) {
  const auto text = render(
      "{% for i in range(1000) %}{% set x = 'a' * 50000 %}{% set y = [x, x] %}{% endfor %}done",
      ordered_json::object(), {.memory_bytes = 1U << 20U});
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_EQ(*text, "done");
}

std::string repeat(const std::string& text, size_t count) {
  std::string result;
  result.reserve(text.size() * count);
  for (size_t index = 0; index < count; ++index) result += text;
  return result;
}

TEST(ChatTemplateBudget, depth_of_the_template_is_bounded) {
  const size_t many = tried_cases(100'000);
  for (const auto& [open, middle, close] :
       std::vector<std::array<std::string, 3>>{{"(", "1", ")"},
                                               {"[", "1", "]"},
                                               {"{1:", "1", "}"},
                                               {"-", "1", ""},
                                               {"not ", "1", ""},
                                               {"x[", "1", "]"},
                                               {"x(", "1", ")"},
                                               {"x|default(", "1", ")"},
                                               {"1 if 1 else ", "1", ""},
                                               {"", "x", ".a"},
                                               {"", "x", "|e"},
                                               {"", "x", "[0]"},
                                               {"", "x", "()"},
                                               {"1 is eq [", "1", "]"},
                                               {"", "1", " if 1"},
                                               {"x[1:", "1", "]"}}) {
    const std::string source = "{{ " + repeat(open, many) + middle + repeat(close, many) + " }}";
    EXPECT_THAT(error_of(source), HasSubstr("depth budget")) << open << close;
  }
  for (const char* tag : {"{% if 1 %}", "{% for i in [1] %}", "{% filter upper %}", "{% set x %}",
                          "{% macro m() %}", "{% with %}", "{% generation %}", "{% call m() %}"}) {
    EXPECT_THAT(error_of(repeat(tag, many)), HasSubstr("depth budget")) << tag;
  }
  EXPECT_THAT(error_of("{% set " + repeat("(", many) + "a"), HasSubstr("depth budget"));
  EXPECT_THAT(error_of("{{ ((((1)))) }}", {.depth = 3}), HasSubstr("depth budget"));
}

TEST(ChatTemplateBudget, long_flat_templates_are_no_deep_ones) {
  const auto sum = render("{{ 0" + repeat(" + 1", 5000) + " }}", ordered_json::object());
  ASSERT_TRUE(sum.has_value()) << sum.error().message;
  EXPECT_EQ(*sum, "5000");
  EXPECT_TRUE(render("{{ 1" + repeat(" and 1", 5000) + " }}", ordered_json::object()).has_value());
  EXPECT_TRUE(render("{{ 1" + repeat(" ~ 1", 5000) + " }}", ordered_json::object()).has_value());
  const std::string branches = repeat("{% elif 0 %}a", 5000);
  EXPECT_TRUE(render("{% if 0 %}" + branches + "{% endif %}", ordered_json::object()).has_value());
}

TEST(ChatTemplateBudget, depth_of_values_is_bounded) {
  EXPECT_THAT(error_of("{% set ns = namespace(x=[]) %}{% for i in range(99999) %}"
                       "{% set ns.x = [ns.x] %}{% endfor %}"),
              HasSubstr("depth budget"));
  EXPECT_THAT(error_of("{% set ns = namespace(x={}) %}{% for i in range(99999) %}"
                       "{% set ns.x = {'a': ns.x} %}{% endfor %}"),
              HasSubstr("depth budget"));
  ordered_json deep = 1;
  for (int level = 0; level < 200; ++level) deep = ordered_json::array({deep});
  EXPECT_THAT(error_of("{{ x }}", {}, {{"x", deep}}), HasSubstr("depth budget"));
}

TEST(ChatTemplateBudget, depth_of_calls_is_bounded) {
  EXPECT_THAT(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("depth"));
  EXPECT_THAT(
      error_of("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}"
               "{{ a() }}"),
      HasSubstr("depth"));
  EXPECT_THAT(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
              HasSubstr("depth"));
  EXPECT_THAT(
      error_of("{% macro m() %}" + repeat("{% if 1 %}", 50) + "{{ " + repeat("(", 50) + "[m()]" +
               repeat(")", 50) + " }}" + repeat("{% endif %}", 50) + "{% endmacro %}{{ m() }}"),
      HasSubstr("depth"));
}

TEST(ChatTemplateBudget, values_that_share_their_parts_cannot_blow_up) {
  const std::string doubled =
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}";
  EXPECT_THAT(error_of(doubled + "{{ ns.x }}"), HasSubstr("budget"));
  EXPECT_THAT(error_of(doubled + "{{ ns.x|tojson }}"), HasSubstr("budget"));
  EXPECT_THAT(error_of(doubled + doubled + "{% set a = ns.x %}" + doubled + "{{ a == ns.x }}"),
              HasSubstr("budget"));
  const std::string tuples =
      "{% set ns = namespace(x=(1, 2)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}"
      "{% endfor %}";
  EXPECT_THAT(error_of(tuples + "{{ {ns.x: 1} }}"), HasSubstr("budget"));
}

TEST(ChatTemplateBudget, objects_that_hold_each_other_end_with_the_rendering) {
  // Each makes a cycle or a long chain; the sanitizers see what is left behind.
  for (const char* source :
       {"{% set ns = namespace() %}{% set ns.self = ns %}",
        "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = [b, {'x': b}] %}",
        "{% set ns = namespace() %}{% for i in [1] %}{% set ns.loop = loop %}{{ loop.changed(loop) "
        "}}"
        "{% endfor %}{{ ns.loop.changed(ns.loop) }}",
        "{% set head = namespace() %}{% set ns = namespace(tail=head) %}{% for i in range(20000) %}"
        "{% set new = namespace() %}{% set tail = ns.tail %}{% set tail.next = new %}"
        "{% set ns.tail = new %}{% endfor %}{% set head = 0 %}",
        "{% set ns = namespace() %}{% macro m() %}{% endmacro %}{% set ns.m = m %}",
        "{% set ns = namespace() %}{% set ns.c = cycler(ns, ns) %}{{ ns.c.next().c.next().a }}",
        "{% set ns = namespace(x=[]) %}{% set ns.x = [ns.x.index, ns] %}"}) {
    const auto text = render(source, ordered_json::object());
    EXPECT_TRUE(text.has_value()) << source << ": " << text.error().message;
  }
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}"),
              HasSubstr("depth"));
  EXPECT_THAT(error_of("{% set ns = namespace(x=1) %}{% for i in range(20000) %}"
                       "{% set ns.x = namespace(x=ns.x) %}{% endfor %}{{ ns }}"),
              HasSubstr("depth"));
}

TEST(ChatTemplateBudget, a_macro_that_outlives_its_scope_sees_no_dead_variables) {
  const auto text = render(
      "{% set ns = namespace() %}{% for i in [1] %}{% macro m() %}[{{ i }}]{% endmacro %}"
      "{% set ns.m = m %}{% endfor %}{{ ns.m() }}",
      ordered_json::object());
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_EQ(*text, "[]");
}

}  // namespace
}  // namespace lockstep
