// Tells how far the load is and, later, what is being served: to the log and to the service
// manager.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>
#include <thread>

#include "server/api/common/served_model.h"
#include "server/daemon/service_notifier.h"
#include "server/daemon/waiting_status.h"

namespace lockstep {

class StatusReport {
 public:
  // Starts its thread. All of it outlives this.
  StatusReport(const ServedModel& model, const ServiceNotifier& notifier,
               const WaitingStatus& waiting);

  // How much longer the service manager is asked to wait at each look.
  static constexpr std::chrono::seconds kMoreTime{30};

  // The text that the service manager shows, as of now.
  std::string text() const;

 private:
  // The text that was told last, and how far the load had come then.
  struct Told {
    std::string text = {};
    uint64_t bytes = 0;
    std::chrono::steady_clock::time_point progressed = std::chrono::steady_clock::now();
    int looks = 0;
  };

  void run(const std::stop_token& stop) const;
  void look(Told& told) const;

  const ServedModel& model_;
  const ServiceNotifier& notifier_;
  const WaitingStatus& waiting_;  // for other hosts
  std::jthread thread_;
};

}  // namespace lockstep
