// The sink of the daemon's log: a descriptor (standard error) behind a bounded queue and a thread
// of its own: a thread that logs never waits for the reader. When the pipe or the disk is full, the
// oldest lines are dropped and counted. (spdlog's own asynchronous logger waits without end for its
// thread when the program ends, which a pipe that nobody reads makes forever.)
#pragma once

#include <spdlog/sinks/sink.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "server/daemon/log_format.h"

namespace lockstep {

class LogOutput final : public spdlog::sinks::sink {
 public:
  static constexpr size_t kQueueBytes = 4 << 20;  // some 20,000 lines
  // For what is queued when the program ends, or calls flush().
  static constexpr std::chrono::milliseconds kPatience{1000};

  // `descriptor` stays the caller's, and open for as long as this lives.
  LogOutput(int descriptor, LogFormat format, size_t queue_bytes = kQueueBytes);
  // Waits for kPatience at most; what is queued then is lost.
  ~LogOutput() override;

  // Any thread; waits for nobody.
  void log(const spdlog::details::log_msg& message) override;

  // Returns when everything logged before has been written or dropped, or kPatience is over.
  void flush() override;

  // The format is the constructor's.
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  // Messages that were not written: pushed out of the queue, or refused by the descriptor.
  uint64_t dropped() const;

 private:
  struct Queue;  // outlives this when its thread hangs in a write

  std::unique_ptr<spdlog::formatter> formatter_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace lockstep
