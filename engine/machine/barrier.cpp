#include "engine/machine/barrier.h"

namespace lockstep {

Barrier::Barrier(size_t worker_count, uint32_t spins)
    : spins_(spins), arrived_(worker_count), rounds_(worker_count) {}

void Barrier::arrive(size_t worker) {
  const uint32_t round = ++rounds_[worker].number;
  if (worker != 0) arrived_[worker].set(round);
}

void Barrier::wait(size_t worker) {
  gather(worker, nullptr);
}

void Barrier::wait_for_all_ranks(size_t worker) {
  gather(worker, links_);
}

void Barrier::gather(size_t worker, RankLinks* links) {
  const uint32_t round = rounds_[worker].number;
  if (worker != 0) {
    released_.wait_for(round, spins_);
    return;
  }
  for (size_t other = 1; other < arrived_.size(); ++other) {
    arrived_[other].wait_for(round, spins_);
  }
  if (links != nullptr) links->meet(rank_);
  if (arrived_.size() > 1) released_.set(round);
}

void Barrier::join(RankLinks& links, size_t rank) {
  links_ = &links;
  rank_ = rank;
}

RankLinks::RankLinks(size_t rank_count, uint32_t spins)
    : rank_count_(rank_count),
      spins_(spins),
      arrived_(rank_count * rank_count),
      rounds_(rank_count) {}

void RankLinks::meet(size_t rank) {
  const uint32_t round = ++rounds_[rank].number;
  for (size_t to = 0; to < rank_count_; ++to) {
    if (to != rank) arrived_[to * rank_count_ + rank].set(round);
  }
  for (size_t from = 0; from < rank_count_; ++from) {
    if (from != rank) arrived_[rank * rank_count_ + from].wait_for(round, spins_);
  }
}

}  // namespace lockstep
