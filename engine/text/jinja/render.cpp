#include "engine/text/jinja/render.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/json.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/utf8.h"

namespace lockstep::jinja {

namespace {

constexpr std::array<std::string_view, 6> kGlobalFunctions = {
    "range", "dict", "namespace", "cycler", "joiner", "raise_exception"};

std::unexpected<Error> error_of(const Failure& failure, uint32_t line) {
  if (failure.raised) return invalid_input("{}", failure.message);
  return invalid_input("chat template, line {}: {}", failure.line != 0 ? failure.line : line,
                       failure.message);
}

// datetime.now().strftime(format): as the C library's, and %f; a naive time has no zone to show.
Value format_time(Heap& heap, const Clock& clock, const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty() ||
      !arguments.positional[0].is_string()) {
    fail("strftime_now() takes one string, the format");
  }
  const std::string& pattern = arguments.positional[0].text();
  const LocalTime now = clock();
  TextBuilder text(heap);
  for (size_t index = 0; index < pattern.size(); ++index) {
    heap.step();
    if (pattern[index] != '%' || index + 1 == pattern.size()) {
      text.append(1, pattern[index]);
      continue;
    }
    size_t end = index + 2;  // flags, a width and a modifier may stand before the letter
    constexpr std::string_view kBefore = "_-0^#EO123456789";
    while (end < pattern.size() && kBefore.find(pattern[end - 1]) != kBefore.npos) ++end;
    const std::string directive = pattern.substr(index, end - index);
    index = end - 1;
    if (directive == "%f") {
      text.append(fmt::format("{:06}", now.microseconds));
    } else if (directive != "%z" && directive != "%Z") {
      std::array<char, 256> buffer;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
      const size_t written =
          std::strftime(buffer.data(), buffer.size(), directive.c_str(), &now.calendar);
      text.append(std::string_view(buffer.data(), written));
#pragma GCC diagnostic pop
    }
  }
  if (arguments.positional[0].traced().is_foreign()) text.mark_foreign(0);
  return make_string(heap, text.finish());
}

// The variables that the server makes of the model, not of a request.
constexpr std::array<std::string_view, 2> kOwnVariables = {"bos_token", "eos_token"};

JsonOrigin origin_of(std::string_view variable) {
  if (variable == "messages") return JsonOrigin::kMessages;
  const bool own = std::ranges::find(kOwnVariables, variable) != kOwnVariables.end();
  return own ? JsonOrigin::kOwn : JsonOrigin::kForeign;
}

// The outermost variables: what the caller gives stands before what the interpreter brings. Only
// what the template names is made.
std::shared_ptr<Scope> make_globals(const Template& program, Heap& heap,
                                    const nlohmann::ordered_json& variables, const Clock& clock) {
  auto globals = std::make_shared<Scope>(nullptr);
  for (Symbol symbol = 0; symbol < program.symbols.size(); ++symbol) {
    const std::string& name = program.symbols.name(symbol);
    if (variables.is_object()) {
      const auto given = variables.find(name);
      if (given != variables.end()) {
        globals->set(symbol, from_json(heap, *given, origin_of(name)));
        continue;
      }
    }
    if (std::ranges::find(kGlobalFunctions, name) != kGlobalFunctions.end()) {
      globals->set(symbol, Callable::make(heap, *find_function(name)));
    } else if (name == "strftime_now") {
      const auto body = [&clock](Heap& own, const Arguments& arguments) {
        return format_time(own, clock, arguments);
      };
      globals->set(symbol, Value(std::shared_ptr<Object>(std::make_shared<Function>(heap, body))));
    }
  }
  return globals;
}

}  // namespace

LocalTime read_local_clock() {
  using std::chrono::system_clock;
  const auto now = system_clock::now();
  const std::time_t seconds = system_clock::to_time_t(now);
  LocalTime time;
  localtime_r(&seconds, &time.calendar);
  const auto since_epoch =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch());
  constexpr int kPerSecond = 1'000'000;
  time.microseconds = static_cast<int>(since_epoch.count() % kPerSecond);
  return time;
}

Result<Template> compile(std::string_view source, const TemplateLimits& limits) {
  if (!is_valid_utf8(source)) {
    return invalid_input("the chat template is not UTF-8: it cannot be used");
  }
  try {
    return parse(source, limits);
  } catch (const Failure& failure) {
    return error_of(failure, 1);
  }
}

Result<TracedText> render(const Template& program, const TemplateLimits& limits,
                          const nlohmann::ordered_json& variables, const Clock& clock) {
  Heap heap(limits);
  TextBuilder output(heap, limits.output_bytes);
  uint32_t line = 1;
  try {
    Interpreter interpreter(program, heap, make_globals(program, heap, variables, clock), output);
    try {
      interpreter.run();
    } catch (const Failure&) {
      line = interpreter.line();
      throw;
    }
    return output.finish();
  } catch (const Failure& failure) {
    return error_of(failure, line);
  }
}

}  // namespace lockstep::jinja
