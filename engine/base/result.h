// Errors as values. A function that can fail for a reason outside the program returns Result<T>;
// its message names the value that was wrong and what to do about it. Bugs go to CHECK instead.
#pragma once

#include <fmt/format.h>

#include <expected>
#include <optional>
#include <string>
#include <utility>

namespace lockstep {

enum class ErrorKind {
  kInvalidInput,    // what was given is wrong: options, a model file, a request (exit 2, HTTP 400)
  kMachineRefused,  // the machine said no: memory, I/O, ports (exit 1, HTTP 500)
  kUnavailable,     // not now: loading, draining, full (HTTP 503)
};

struct Error {
  ErrorKind kind = ErrorKind::kInvalidInput;
  std::string message;
  std::optional<int> retry_after_seconds = {};  // with kUnavailable, where it can be told
};

template <typename T>
using Result = std::expected<T, Error>;

// The process's exit code for an error that ends it: 2 for what was given, 1 for the machine.
inline int exit_code(const Error& error) {
  return error.kind == ErrorKind::kInvalidInput ? 2 : 1;
}

template <typename... Arguments>
std::unexpected<Error> invalid_input(fmt::format_string<Arguments...> format,
                                     Arguments&&... arguments) {
  return std::unexpected(
      Error{ErrorKind::kInvalidInput, fmt::format(format, std::forward<Arguments>(arguments)...)});
}

template <typename... Arguments>
std::unexpected<Error> machine_refused(fmt::format_string<Arguments...> format,
                                       Arguments&&... arguments) {
  return std::unexpected(Error{ErrorKind::kMachineRefused,
                               fmt::format(format, std::forward<Arguments>(arguments)...)});
}

template <typename... Arguments>
std::unexpected<Error> unavailable(fmt::format_string<Arguments...> format,
                                   Arguments&&... arguments) {
  return std::unexpected(
      Error{ErrorKind::kUnavailable, fmt::format(format, std::forward<Arguments>(arguments)...)});
}

}  // namespace lockstep
