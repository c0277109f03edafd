#include "server/daemon/log_format.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>

#include "engine/base/json.h"

namespace lockstep {
namespace {

// In quotes, as JSON writes it, which is what readers of logfmt expect as well; bytes that are no
// UTF-8 become U+FFFD.
std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

bool needs_no_quotes(std::string_view text) {
  constexpr std::string_view kPlainBytes =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+@%,*~";
  return !text.empty() && text.find_first_not_of(kPlainBytes) == std::string_view::npos;
}

std::string logfmt_value(std::string_view text) {
  return needs_no_quotes(text) ? std::string(text) : quoted(text);
}

std::string time_text(std::chrono::system_clock::time_point time) {
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(time)),
                     ((milliseconds % 1000) + 1000) % 1000);
}

std::string_view level_text(spdlog::level::level_enum level) {
  const auto name = spdlog::level::to_string_view(level);
  const std::string_view text(name.data(), name.size());
  return text == "warning" ? "warn" : text;  // as the option spells it
}

// Everything before the message.
std::string line_start(LogFormat format, std::string_view time, std::string_view level) {
  switch (format) {
    case LogFormat::kText:
      return fmt::format("{} {} ", time, level);
    case LogFormat::kLogfmt:
      return fmt::format("time={} level={} ", time, level);
    case LogFormat::kJson:
      return fmt::format(R"({{"time":"{}","level":"{}",)", time, level);
  }
  return "";
}

// One line, whatever is in the message: for people, quotes only where there is something to escape.
std::string plain_text(std::string_view message) {
  const bool printable = std::ranges::all_of(message, [](char c) { return c >= 0x20 && c < 0x7f; });
  return printable ? std::string(message) : quoted(message);
}

class Formatter final : public spdlog::formatter {
 public:
  explicit Formatter(LogFormat format) : format_(format) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const std::string_view payload(message.payload.data(), message.payload.size());
    const std::string_view logger(message.logger_name.data(), message.logger_name.size());
    std::string text = line_start(format_, time_text(message.time), level_text(message.level));
    if (logger == kFieldsLogger) {
      text += payload;
    } else if (format_ == LogFormat::kText) {
      text += plain_text(payload);
    } else {
      text += LogFields(format_, payload).text();
    }
    text += format_ == LogFormat::kJson ? "}\n" : "\n";
    line.append(text.data(), text.data() + text.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<Formatter>(format_);
  }

 private:
  LogFormat format_;
};

}  // namespace

LogFormat log_format(std::string_view name) {
  if (name == "json") return LogFormat::kJson;
  return name == "logfmt" ? LogFormat::kLogfmt : LogFormat::kText;
}

LogFields::LogFields(LogFormat format, std::string_view message) : format_(format) {
  if (format == LogFormat::kText) {
    text_ = plain_text(message);
  } else {
    add("msg", message);
  }
}

LogFields& LogFields::add(std::string_view key, std::string_view value) {
  add_raw(key, format_ == LogFormat::kJson ? quoted(value) : logfmt_value(value));
  return *this;
}

LogFields& LogFields::add(std::string_view key, uint64_t value) {
  add_raw(key, fmt::format("{}", value));
  return *this;
}

LogFields& LogFields::add(std::string_view key, int value) {
  add_raw(key, fmt::format("{}", value));
  return *this;
}

LogFields& LogFields::add(std::string_view key, bool value) {
  add_raw(key, value ? "true" : "false");
  return *this;
}

LogFields& LogFields::add_seconds(std::string_view key, double seconds) {
  add_raw(key, fmt::format("{:.6f}", seconds));
  return *this;
}

void LogFields::add_raw(std::string_view key, std::string_view value) {
  if (!text_.empty()) text_ += format_ == LogFormat::kJson ? ',' : ' ';
  if (format_ == LogFormat::kJson) {
    text_ += fmt::format(R"("{}":{})", key, value);
  } else {
    text_ += fmt::format("{}={}", key, value);
  }
}

LogFrame log_frame(LogFormat format, std::string_view level) {
  LogFrame frame{.head = line_start(format, time_text(std::chrono::system_clock::now()), level),
                 .tail = "\n"};
  if (format == LogFormat::kLogfmt) {
    frame.head += "msg=\"";
    frame.tail = "\"\n";
  } else if (format == LogFormat::kJson) {
    frame.head += R"("msg":")";
    frame.tail = "\"}\n";
  }
  return frame;
}

std::unique_ptr<spdlog::formatter> make_log_formatter(LogFormat format) {
  return std::make_unique<Formatter>(format);
}

}  // namespace lockstep
