// The shares of the queue's capacity that tenants may have: places for requests, and prompt tokens
// that wait for their first pass. No threads and no clock.
//
// The rules. While the queue is not full every request is taken. When it is, its capacity is shared
// evenly among the tenants, the one that asks included. A tenant that stays within its share with
// what it asks for displaces others: of the tenant of the most, the group that came last, until the
// request fits, as long as that tenant has more than its share. Only groups with a request that
// still waits go. So however many requests one tenant has, another's first is taken: while that
// one is within its share, some other is above its own.
//
// A first prompt may be longer than a share of the tokens: it is taken as if it were within it
// where those that go leave their tenants something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

class QueueShares {
 public:
  using GroupId = uint64_t;  // of requests that came together; later ones have higher numbers
  struct Limits {
    size_t places = 0;         // of requests that run and wait
    size_t prompt_tokens = 0;  // one group is taken whatever its length
  };
  struct Demand {
    std::string tenant;
    size_t requests = 1;
    size_t places = 1;
    size_t prompt_tokens = 1;
  };
  enum class Shortage { kPlaces, kPromptTokens };

  // Takes a group. What it returns is displaced: those have left. Or what there is too little of,
  // and nothing has changed; nor where it throws std::bad_alloc.
  std::expected<std::vector<GroupId>, Shortage> take(GroupId id, const Demand& demand,
                                                     const Limits& limits);
  // As take(), and nothing changes.
  std::expected<std::vector<GroupId>, Shortage> check(const Demand& demand,
                                                      const Limits& limits) const;

  // One of the group's requests waits no longer, with so many prompt tokens; it runs.
  void start(GroupId id, size_t prompt_tokens);
  // One of them has ended: `waited` until then, or had started. A group that was displaced is
  // unknown, here and above: nothing happens.
  void end(GroupId id, size_t places, size_t prompt_tokens, bool waited);

  size_t group_count() const { return groups_.size(); }
  size_t places() const { return places_; }
  size_t prompt_tokens() const { return prompt_tokens_; }

 private:
  struct Group {
    std::string tenant;
    size_t requests = 0;
    size_t waiting = 0;  // of them
    size_t places = 0;
    size_t prompt_tokens = 0;  // of those that wait
  };
  struct Tenant {
    size_t groups = 0;
    size_t places = 0;
    size_t prompt_tokens = 0;
  };

  void leave(GroupId id);

  std::map<GroupId, Group> groups_;
  std::map<std::string, Tenant> tenants_;  // with at least one group
  size_t places_ = 0;
  size_t prompt_tokens_ = 0;
};

}  // namespace lockstep
