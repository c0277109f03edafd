// The log of the running daemon: spdlog's default logger and one for requests, both into one
// LogOutput on standard error.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "server/daemon/line_budget.h"
#include "server/daemon/log_output.h"
#include "server/daemon/request_log.h"
#include "server/options/options.h"

namespace lockstep {

class DaemonLog {
 public:
  // Replaces spdlog's default logger. Once.
  explicit DaemonLog(const Options& options);
  // Waits for LogOutput::kPatience at most; logging goes on to work.
  ~DaemonLog();

  LogFormat format() const { return format_; }
  uint64_t dropped() const { return output_->dropped(); }

  // Any thread.
  void set_level(const std::string& level);  // as the option spells it
  // One line; of what the gate answers by itself so many a second at most.
  void log_request(const HttpRecord& record);
  // Says how many lines log_request() has left out, unless it has done so within this interval. To
  // be called now and then; the destructor does, too.
  void tell_left_out(std::chrono::seconds interval = std::chrono::seconds(10));

 private:
  LogFormat format_;
  std::shared_ptr<LogOutput> output_;
  std::shared_ptr<spdlog::logger> requests_;
  LineBudget gate_lines_;
};

// Writes what is queued, as far as that is possible within LogOutput::kPatience, and ends the
// process without unwinding.
[[noreturn]] void leave(int status);

}  // namespace lockstep
