// CHECK(condition, format, values...): stops the process with a message when the condition does
// not hold. For bugs only; stays on in release builds. Never for what a file or a client said.
#pragma once

#include <fmt/format.h>

#include <string>

namespace lockstep {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace lockstep

#define CHECK(condition, ...)                                                               \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      ::lockstep::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                       \
  } while (false)
