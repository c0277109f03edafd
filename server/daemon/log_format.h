// How a line of the log is written. Whatever a client or a file has put into a value, a line stays
// one line of printable ASCII whose fields can be told apart: values are quoted and escaped.
#pragma once

#include <spdlog/formatter.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

enum class LogFormat {
  kText,    // 2026-11-21T15:13:00.123Z info ready after 2.10 s
  kLogfmt,  // time=2026-11-21T15:13:00.123Z level=info msg="ready after 2.10 s"
  kJson,    // {"time":"2026-11-21T15:13:00.123Z","level":"info","msg":"ready after 2.10 s"}
};

// Reads "text", "logfmt" or "json".
LogFormat log_format(std::string_view name);

// A message made of fields, in the format's words. Keys are the program's own: lower case letters
// and underscores.
class LogFields {
 public:
  // "request" say: what the fields are about.
  LogFields(LogFormat format, std::string_view message);

  LogFields& add(std::string_view key, std::string_view value);
  LogFields& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  LogFields& add(std::string_view key, uint64_t value);
  LogFields& add(std::string_view key, int value);
  LogFields& add(std::string_view key, bool value);
  // A duration, to the microsecond.
  LogFields& add_seconds(std::string_view key, double seconds);

  const std::string& text() const { return text_; }

 private:
  void add_raw(std::string_view key, std::string_view value);

  LogFormat format_;
  std::string text_;
};

// The name of the logger whose messages are the text of a LogFields of the formatter's format.
inline constexpr std::string_view kFieldsLogger = "fields";

// The start and the end of a line around a message that holds neither quotes nor control bytes
// and was not made by a LogFields; for code that has to write without formatting anything.
struct LogFrame {
  std::string head;
  std::string tail;
};
LogFrame log_frame(LogFormat format, std::string_view level);

std::unique_ptr<spdlog::formatter> make_log_formatter(LogFormat format);

}  // namespace lockstep
