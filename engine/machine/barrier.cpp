#include "engine/machine/barrier.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

// Up to here each worker looks at all the others' lines.
constexpr size_t kDirectWorkersMax = 2;

// Up to here one worker looks at all the others' lines.
constexpr size_t kOneLevelWorkersMax = 16;

// Near the square root of 17 to 128 workers, where the two levels' lines are fewest together.
constexpr size_t kPartWorkersMax = 8;

// Caches with fewer workers than this, on average, make groups that save nothing.
constexpr size_t kCacheWorkersMin = 4;

// As many as let the threads of a processor that four share have their turns; with more, a
// processor that another program keeps busy takes a scheduling slice for each.
constexpr uint32_t kYields = 4;

Patience patience(uint32_t spins) {
  return spins == 0 ? Patience{.spins = 0, .yields = kYields} : Patience{.spins = spins};
}

// Adds one to the arrivals of a round; true for the last, after which the count is that of the next
// round. Ordered: what was written before any arrival is seen by the last one.
bool count_arrival(std::atomic<uint32_t>& count, size_t total) {
  if (count.fetch_add(1, std::memory_order_acq_rel) + 1 != total) return false;
  count.store(0, std::memory_order_relaxed);  // published by the release that follows
  return true;
}

// In order of each cache's first worker.
WorkerGroups group_by_cache(std::span<const int> caches) {
  WorkerGroups groups;
  for (size_t worker = 0; worker < caches.size(); ++worker) {
    const auto shares = [&](const std::vector<size_t>& group) {
      return caches[group.front()] == caches[worker];
    };
    const auto found = std::ranges::find_if(groups, shares);
    (found == groups.end() ? groups.emplace_back() : *found).push_back(worker);
  }
  return groups;
}

// Appends the group, in even parts of neighbours where it is large.
void append_parts(const std::vector<size_t>& group, WorkerGroups& groups) {
  const size_t count = group.size();
  const size_t parts = count <= kOneLevelWorkersMax ? 1 : divide_up(count, kPartWorkersMax);
  for (size_t part = 0; part < parts; ++part) {
    const auto at = [&](size_t index) {
      return group.begin() + static_cast<std::ptrdiff_t>(count * index / parts);
    };
    groups.emplace_back(at(part), at(part + 1));
  }
}

}  // namespace

WorkerGroups group_workers(size_t worker_count, std::span<const int> caches) {
  if (worker_count <= kOneLevelWorkersMax) return {};
  const std::vector<int> one_cache(worker_count, 0);
  WorkerGroups by_cache = group_by_cache(caches.size() == worker_count ? caches : one_cache);
  if (by_cache.size() * kCacheWorkersMin > worker_count) by_cache = group_by_cache(one_cache);
  WorkerGroups groups;
  for (const std::vector<size_t>& group : by_cache) append_parts(group, groups);
  return groups;
}

Barrier::Barrier(size_t worker_count, uint32_t spins, int node, WorkerGroups groups)
    : spins_(spins),
      arrived_(worker_count, node),
      rounds_(worker_count),
      released_(1, node),
      groups_(spins == 0 ? WorkerGroups() : std::move(groups)),
      group_arrived_(groups_.size(), node),
      group_released_(groups_.size(), node) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (const size_t worker : groups_[group]) rounds_[worker].group = group;
  }
}

void Barrier::arrive(size_t worker) {
  Round& round = rounds_[worker];
  ++round.number;
  if (crowded()) {
    round.arrived_last = count_arrival(arrived_count_, rounds_.size());
  } else if (rounds_.size() > 1 && (worker != 0 || rounds_.size() <= kDirectWorkersMax)) {
    arrived_[worker].set(round.number);
  }
}

void Barrier::wait(size_t worker) {
  if (!crowded() && rounds_.size() <= kDirectWorkersMax) {
    wait_for_workers(worker);
  } else {
    release(worker, nullptr);
  }
}

void Barrier::wait_for_all_ranks(size_t worker) {
  release(worker, links_);
}

void Barrier::wait_for_workers(size_t worker) {
  for (size_t other = 0; other < rounds_.size(); ++other) {
    if (other != worker) arrived_[other].wait_for(rounds_[worker].number, spins_);
  }
}

// One worker knows that all have arrived and releases the others.
void Barrier::release(size_t worker, RankLinks* links) {
  const Round& round = rounds_[worker];
  if (!groups_.empty()) {
    release_in_groups(worker, links);
    return;
  }
  if (crowded() ? !round.arrived_last : worker != 0) {
    released_[0].wait_for(round.number, patience(spins_));
    return;
  }
  if (!crowded()) wait_for_workers(worker);
  if (links != nullptr) links->meet(rank_);
  if (rounds_.size() > 1) released_[0].set(round.number);
}

// Each group's leader knows that its group has arrived, the first group's that all have. A leader's
// release carries on what it has seen, so that the last level orders all writes before the first.
void Barrier::release_in_groups(size_t worker, RankLinks* links) {
  const uint32_t round = rounds_[worker].number;
  const size_t group = rounds_[worker].group;
  const std::vector<size_t>& members = groups_[group];
  if (worker != members.front()) {
    group_released_[group].wait_for(round, spins_);
    return;
  }
  for (const size_t member : members) {
    if (member != worker) arrived_[member].wait_for(round, spins_);
  }
  if (group == 0) {
    for (size_t other = 1; other < groups_.size(); ++other) {
      group_arrived_[other].wait_for(round, spins_);
    }
    if (links != nullptr) links->meet(rank_);
    released_[0].set(round);
  } else {
    group_arrived_[group].set(round);
    released_[0].wait_for(round, spins_);
  }
  group_released_[group].set(round);
}

void Barrier::join(RankLinks& links, size_t rank) {
  links_ = &links;
  rank_ = rank;
}

RankLinks::RankLinks(size_t rank_count, uint32_t spins, std::span<const int> nodes,
                     std::function<void()> when_all_are_there)
    : spins_(spins), when_all_are_there_(std::move(when_all_are_there)), rounds_(rank_count) {
  for (size_t rank = 0; rank < rank_count; ++rank) {
    const int node = rank < nodes.size() ? nodes[rank] : -1;
    arrived_.push_back(std::make_unique<SignalLines>(rank_count, node));
  }
}

void RankLinks::meet(size_t rank) {
  const uint32_t round = ++rounds_[rank].number;
  if (spins_ == 0) {
    meet_crowded(round);
    return;
  }
  if (when_all_are_there_) {
    meet_at_first(rank, round);
    return;
  }
  const size_t rank_count = rounds_.size();
  for (size_t to = 0; to < rank_count; ++to) {
    if (to != rank) (*arrived_[to])[rank].set(round);
  }
  for (size_t from = 0; from < rank_count; ++from) {
    if (from != rank) (*arrived_[rank])[from].wait_for(round, spins_);
  }
}

// Two transfers instead of one: something is to be done in between.
void RankLinks::meet_at_first(size_t rank, uint32_t round) {
  if (rank != 0) {
    (*arrived_[0])[rank].set(round);
    (*arrived_[rank])[0].wait_for(round, spins_);
    return;
  }
  const size_t rank_count = rounds_.size();
  for (size_t from = 1; from < rank_count; ++from) (*arrived_[0])[from].wait_for(round, spins_);
  when_all_are_there_();
  for (size_t to = 1; to < rank_count; ++to) (*arrived_[to])[0].set(round);
}

void RankLinks::meet_crowded(uint32_t round) {
  if (count_arrival(arrived_count_, rounds_.size())) {
    if (when_all_are_there_) when_all_are_there_();
    released_.set(round);
  } else {
    released_.wait_for(round, patience(spins_));
  }
}

}  // namespace lockstep
