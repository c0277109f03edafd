// The rows that ranks of several hosts bring one another at each barrier over all ranks of a pass,
// a round, and the order of their bytes. Both follow from all ranks' plans and the batch, so that
// nothing but the bytes travels.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/range.h"
#include "engine/graph/arenas.h"
#include "engine/operations/exchanged_rows.h"
#include "engine/operations/plan.h"
#include "engine/pass/batch.h"

namespace lockstep {

// The ranks of each host; they follow one another, the leader's first.
struct HostRanks {
  std::vector<Range> of_host = {};
  size_t host = 0;  // this one

  Range own() const { return of_host[host]; }
};

// The rows that all ranks bring to one barrier.
struct HostRound {
  std::vector<std::vector<ExchangedRows>> of_rank;
  // Row by row those of the batch's tokens: some can travel before others are computed.
  bool is_by_tokens = false;
  // The next step is a product of these tokens: it can begin with the first rows.
  bool is_awaited_by_rows = false;

  bool has_logits() const;
};

class HostRounds {
 public:
  // `plans`: of all ranks of all hosts. Where they are GPUs there are no rounds: these exchange by
  // themselves (nccl_among_hosts.h).
  HostRounds(std::span<const Plan> plans, HostRanks ranks);

  size_t count() const { return rounds_.size(); }
  const HostRound& operator[](size_t round) const { return rounds_[round]; }
  const HostRanks& ranks() const { return ranks_; }
  size_t host_count() const { return ranks_.of_host.size(); }

  // One round's in one direction, in any pass; and a token's in a round that is by tokens. The same
  // on all hosts.
  size_t bytes_most() const { return bytes_most_; }
  size_t token_bytes_most() const { return token_bytes_most_; }

  size_t bytes(const HostRound& round, const Batch& batch, size_t from_host, size_t to_host,
               Range among = kAllRows) const;
  // Brings the rows of this host's ranks together, as they go to a host, or puts those that have
  // come from one into the memory of every rank here. `own_ranks`: the memory of this host's ranks.
  // Returns what lies behind the bytes.
  std::byte* take(const HostRound& round, const Batch& batch, size_t to_host,
                  std::span<const ArenaAddresses> own_ranks, std::byte* to,
                  Range among = kAllRows) const;
  void put(const HostRound& round, const Batch& batch, size_t from_host,
           std::span<const ArenaAddresses> own_ranks, const std::byte* from,
           Range among = kAllRows) const;

 private:
  HostRanks ranks_;
  std::vector<HostRound> rounds_;
  size_t bytes_most_ = 0;
  size_t token_bytes_most_ = 0;
};

}  // namespace lockstep
