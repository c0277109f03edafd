// Tells the service manager how the daemon is: systemd's notification protocol (sd_notify(3)), one
// datagram of VARIABLE=value lines to the Unix socket that $NOTIFY_SOCKET names. Without a service
// manager everything here does nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;

// The variable's value; empty where there is none. It lives as long as the variables.
std::string_view value_of(const EnvironmentVariables& environment, std::string_view name);

class ServiceNotifier {
 public:
  using Clock = std::chrono::steady_clock;

  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of these variables.
  explicit ServiceNotifier(const EnvironmentVariables& environment);
  ~ServiceNotifier();

  ServiceNotifier(const ServiceNotifier&) = delete;
  ServiceNotifier& operator=(const ServiceNotifier&) = delete;

  bool is_there() const { return socket_ >= 0; }

  // Any thread. Sends the lines, and descriptors with them (for FDSTORE=1). Waits for a service
  // manager that is busy, but for a second at most; false if it could not be told.
  bool send(std::string_view lines, std::span<const int> descriptors = {}) const;

  void loading(std::string_view status, std::chrono::seconds more_time) const;
  void ready(std::string_view status) const;
  void status(std::string_view status) const;
  void reloading() const;
  void stopping(std::string_view status, std::chrono::seconds more_time) const;

  // "Alive", if the service manager wants to hear it and has not just been told; never waits.
  void feed_watchdog(Clock::time_point now = Clock::now());

 private:
  bool send_now(std::string_view lines, std::span<const int> descriptors) const;

  int socket_ = -1;
  std::string address_;                       // of sun_path; a leading NUL for abstract ones
  std::chrono::microseconds watchdog_{0};     // 0: none
  std::atomic<Clock::duration> next_feed_{};  // since the clock's epoch
};

}  // namespace lockstep
