// The workers of a machine's places, and the lines by which the places' workers meet. They belong
// to the places: ranks of several models (ranks.h) may borrow the same ones and compute in turns,
// so that no two pools of workers need one processor.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/barrier.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/workers.h"

namespace lockstep {

class PlaceWorkers {
 public:
  // One pool for each place, with a worker for each entry of its `cpus`. Fails with kMachineRefused
  // where a thread cannot be started or pinned. `exchange`: what is done when the workers of all
  // places have met and before they go on (RankLinks); none where there are no other hosts.
  static Result<std::shared_ptr<PlaceWorkers>> start(std::span<const RankPlace> places,
                                                     std::function<void()> exchange = {});

  size_t count() const { return pools_.size(); }
  Workers& operator[](size_t place) { return *pools_[place]; }

 private:
  PlaceWorkers() = default;

  std::unique_ptr<RankLinks> links_;  // none for one place alone
  std::vector<std::unique_ptr<Workers>> pools_;
};

}  // namespace lockstep
