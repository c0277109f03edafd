// A report about the ranks: their memory, where it really lies, and what exchange costs them.
#pragma once

#include <vector>

#include "engine/interface/statistics.h"
#include "engine/machine/topology.h"
#include "engine/pass/worker_counters.h"
#include "engine/runtime/ranks.h"

namespace lockstep {

class RankReport {
 public:
  // Looks where the pages of the weights lie, and how large those of all arenas are, as far as they
  // are the host's; after the load. `ranks` must outlive this; `topology` has the ranks' GPUs. Says
  // in the log what is not as it should be. `draft`: the ranks of a smaller model at the same
  // places, which are counted with these; null: there are none.
  RankReport(Ranks& ranks, const Topology& topology, const Ranks* draft = nullptr);

  // Any thread.
  std::vector<RankStatistics> statistics() const;

 private:
  Ranks& ranks_;
  std::vector<RankStatistics> placed_;  // what does not change any more
  TickClock clock_;
};

}  // namespace lockstep
