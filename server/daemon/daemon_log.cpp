#include "server/daemon/daemon_log.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "engine/base/log.h"

namespace lockstep {
namespace {

// Lines for what is refused before it is whole: 172,800 a day at most, from all clients.
constexpr double kGateLinesPerSecond = 2;
constexpr double kGateLinesAtOnce = 100;

std::shared_ptr<spdlog::logger> make_logger(std::string name,
                                            const std::shared_ptr<LogOutput>& output) {
  auto logger = std::make_shared<spdlog::logger>(std::move(name), output);
  // spdlog would print what the output throws (no memory for a line) to where nobody may read.
  logger->set_error_handler([](const std::string&) {});
  return logger;
}

}  // namespace

DaemonLog::DaemonLog(const Options& options)
    : format_(log_format(options.log_format)),
      output_(std::make_shared<LogOutput>(STDERR_FILENO, format_)),
      requests_(make_logger(std::string(kFieldsLogger), output_)),
      gate_lines_(kGateLinesPerSecond, kGateLinesAtOnce) {
  spdlog::register_logger(requests_);
  spdlog::set_default_logger(make_logger("lockstepd", output_));
  set_level(options.log_level);
}

DaemonLog::~DaemonLog() {
  tell_left_out(std::chrono::seconds(0));
  output_->flush();
}

void DaemonLog::set_level(const std::string& level) {
  spdlog::set_level(spdlog::level::from_str(level));
}

void DaemonLog::log_request(const HttpRecord& record) {
  const auto level = is_routine(record) ? spdlog::level::debug : spdlog::level::info;
  if (!requests_->should_log(level)) return;
  if (!record.was_whole && !gate_lines_.take(std::chrono::steady_clock::now())) return;
  requests_->log(level, request_fields(format_, record).text());
}

void DaemonLog::tell_left_out(std::chrono::seconds interval) {
  const auto now = std::chrono::steady_clock::now();
  if (const auto count = gate_lines_.left_out(now, interval)) {
    spdlog::warn("{} requests that were refused at the gate have no line of their own", *count);
  }
}

void leave(int status) {
  spdlog::default_logger()->flush();
  std::_Exit(status);
}

}  // namespace lockstep
