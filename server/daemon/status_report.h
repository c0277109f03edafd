// Tells how far the load is and, later, what is being served: to the log and to the service
// manager.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "server/api/common/served_model.h"
#include "server/daemon/service_notifier.h"

namespace lockstep {

class StatusReport {
 public:
  // Starts its thread. All of it outlives this.
  StatusReport(const ServedModel& model, const ServiceNotifier& notifier);

  // What the service manager shows, as of now.
  std::string text() const;

 private:
  void run(const std::stop_token& stop) const;

  const ServedModel& model_;
  const ServiceNotifier& notifier_;
  std::jthread thread_;
};

}  // namespace lockstep
