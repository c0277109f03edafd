// The order of those that wait: the best priority first; within it the tenant that has had the
// fewest tokens; within a tenant first come first served. Start-time fair queueing (Goyal, Vin,
// Cheng 1996): a tenant's tag counts the tokens that were computed for it, what is admitted takes
// the tag as its start, and a tenant that comes anew starts where those that wait are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep {

using SequenceId = uint64_t;

class FairQueue {
 public:
  // A sequence's place in the order; what has not been admitted yet has no start.
  static constexpr double kNoStart = std::numeric_limits<double>::infinity();
  struct Place {
    int32_t priority = 0;
    double start = kNoStart;
    SequenceId id = 0;

    auto operator<=>(const Place&) const = default;
  };

  struct Tenant {
    double tag = 0;
    size_t open = 0;     // its sequences
    size_t running = 0;  // of them; the scheduler's own
    std::set<Place> waiting;
  };

  // A sequence of this tenant comes; the reference stays good until as many have left. `floor`: the
  // least start of those that are served now, if any.
  Tenant& enter(const std::string& name, std::optional<double> floor);
  void leave(const std::string& name);
  // Everybody leaves, whatever state a throw has left. Takes no memory.
  void reset();

  void add(Tenant& tenant, const Place& place);
  void remove(Tenant& tenant, const Place& place);
  // The first of every tenant, in order.
  std::vector<Place> heads() const;
  size_t waiting_count() const { return waiting_count_; }

  // The start of what is admitted for the first time, for which `tokens` are charged.
  double admit(Tenant& tenant, double tokens);

 private:
  std::optional<double> least_waiting_start() const;

  std::map<std::string, Tenant> tenants_;
  size_t open_count_ = 0;
  size_t waiting_count_ = 0;
  double latest_start_ = 0;
};

}  // namespace lockstep
