#include "server/daemon/daemon_log.h"

#include <unistd.h>

#include <cstdlib>

#include "engine/base/log.h"

namespace lockstep {
namespace {

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
      requests_(make_logger(std::string(kFieldsLogger), output_)) {
  spdlog::register_logger(requests_);
  spdlog::set_default_logger(make_logger("lockstepd", output_));
  set_level(options.log_level);
}

DaemonLog::~DaemonLog() {
  output_->flush();
}

void DaemonLog::set_level(const std::string& level) {
  spdlog::set_level(spdlog::level::from_str(level));
}

void DaemonLog::log_request(const HttpRecord& record, const std::optional<GenerationNote>& note) {
  const auto level = is_routine(record) ? spdlog::level::debug : spdlog::level::info;
  if (!requests_->should_log(level)) return;
  requests_->log(level, request_fields(format_, record, note).text());
}

void leave(int status) {
  spdlog::default_logger()->flush();
  std::_Exit(status);
}

}  // namespace lockstep
