// The router before a fleet: which replica gets a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "engine/interface/simulation.h"

namespace lockstep {

// A replica by its metrics, as old as the router's last look at them, and by what the router knows
// of itself.
struct ReplicaState {
  size_t waiting = 0;
  size_t running = 0;
  double page_use = 0;  // from 0 to 1
  size_t active = 0;    // requests that were sent there and have not been answered, now
};

class Router {
 public:
  virtual ~Router() = default;

  // The replica that gets the request with this number.
  virtual size_t choose(const SimulatedRequest& request, size_t number,
                        std::span<const ReplicaState> replicas) = 0;
};

// "round-robin" takes turns. "least-waiting" takes the replica with the fewest requests, waiting
// and running. The others add up scores as the endpoint picker of llm-d does, with three for the
// part of the prompt that the replica was sent before, as far as the router remembers, and two for
// the part of the pages that is free: "prefix" with two for how short the queue is, "prefix-active"
// with four for how few active requests it has (deploy/kubernetes/gateway). Ties are drawn. `name`
// must be one of router_names().
std::unique_ptr<Router> make_router(std::string_view name, size_t replicas, uint64_t seed);

}  // namespace lockstep
