// How the interpreter of chat templates gives up. Any expression at any depth may fail, as in
// Python, so inside engine/text/jinja a failure is thrown; ChatTemplate catches it at its door and
// makes it an Error. Nothing else is thrown, and it never leaves that door.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

namespace lockstep::jinja {

struct Failure {
  std::string message;
  uint32_t line = 0;    // of the template; 0: not known yet
  bool raised = false;  // by the template's own raise_exception
  bool budget = false;  // a limit ran out: nothing may swallow it
};

template <typename... Arguments>
[[noreturn]] void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw Failure{fmt::format(format, std::forward<Arguments>(arguments)...)};
}

}  // namespace lockstep::jinja
