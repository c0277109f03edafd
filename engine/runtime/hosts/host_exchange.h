// A host's part in passes that several hosts compute: the leader hands the batch to the others.
// Ranks on GPUs exchange by themselves (nccl_among_hosts.h); what those on processors have computed
// it brings to the ranks of other hosts, and back: at each barrier over all ranks of a pass, after
// they have met and before any goes on, one worker sends its ranks' rows to every other host and
// puts theirs into the memory of every rank here. Rows of large batches go while they are computed,
// and come while the next step computes (RowExchange).
//
// Between passes one thread calls it, within a pass one worker at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/range.h"
#include "engine/base/result.h"
#include "engine/graph/arenas.h"
#include "engine/hosts/host_group.h"
#include "engine/operations/plan.h"
#include "engine/pass/batch.h"
#include "engine/pass/row_carrier.h"
#include "engine/runtime/hosts/host_rounds.h"
#include "engine/runtime/hosts/row_exchange.h"

namespace lockstep {

// Hidden rows that are exchanged in one piece: as many as a MiB holds, but one at least.
size_t hidden_rows_at_once(size_t width);

// Rows of a large batch that travel together: a task of a product has as many at least.
inline constexpr size_t kExchangedBlockRows = 64;

// The memory that a host takes for its exchanges with others: the same on all of them. `plans`: of
// all ranks of all hosts.
uint64_t host_buffer_bytes(std::span<const Plan> plans, const HostRanks& ranks);

class HostExchange {
 public:
  // `plans`: of all ranks of all hosts. The group must outlive this; its links are opened before
  // the first pass.
  HostExchange(HostGroup& group, HostRanks ranks, std::vector<Plan> plans,
               size_t block_rows = kExchangedBlockRows);
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  // The most bytes of one exchange with another host, in either direction: the same on all hosts.
  size_t bytes_most() const { return outgoing_.size(); }

  const HostRanks& ranks() const { return rounds_.ranks(); }
  std::span<const Plan> plans() const { return plans_; }
  HostGroup& group() const { return *group_; }
  bool leads() const { return group_->leads(); }
  // Between passes: from now on with these hosts. Their plans are those of the former group.
  void join(HostGroup& group) { group_ = &group; }

  // Once, before the first pass: the memory of this host's ranks, in order.
  void bind(std::vector<ArenaAddresses> own_ranks) { own_ranks_ = std::move(own_ranks); }

  // A pass: the leader's hands the batch to the others, whose own begins when it is there. The
  // batch must live until the pass has ended. finish_pass() fails with kMachineRefused where
  // another host has been lost: what the pass has computed is then worth nothing.
  Result<void> begin_pass(const Batch& batch);
  Result<void> finish_pass();
  // Instead, where a rank of this host has failed, with its error: another host may be to blame,
  // and its reason is returned. Else the group fails with this one.
  std::unexpected<Error> fail_pass(const Error& error);

  // The rows of a pass that can travel while steps compute, for its workers.
  RowCarrier& rows() { return rows_; }

  // By one worker, at each barrier over all ranks, in the plan's order. Goes on without exchanging
  // anything once it has failed, so that all come to an end.
  void exchange();

  // Bytes that went to other hosts and came from them in all passes so far, and the time that it
  // took. Any thread.
  uint64_t moved_bytes() const {
    return moved_bytes_.load(std::memory_order_relaxed) + rows_.moved_bytes();
  }
  std::chrono::nanoseconds exchange_time() const {
    return std::chrono::nanoseconds(exchange_ns_.load(std::memory_order_relaxed)) + rows_.time();
  }

  // After a pass, on the leader before gather_hidden_rows(): the others are to take part.
  Result<void> ask_for_hidden_rows(size_t first_token, size_t count, HiddenForm form);
  // Brings the columns of so many hidden rows, and the sums of their chunks' squares, [row] each,
  // of all ranks to the leader; each host has its own ranks'. At most hidden_rows_at_once(). All
  // hosts call it.
  Result<void> gather_hidden_rows(size_t count, std::span<float> rows, std::span<float> sums);

  // The same of one token's kept rows, side by side (Executor::read_kept_rows()). The leader asks
  // and gathers only if other hosts have a part of them: others_keep_rows().
  bool others_keep_rows() const;
  Result<void> ask_for_kept_rows(size_t token);
  Result<void> gather_kept_rows(std::span<float> row);

 private:
  size_t take(const HostRound& round, size_t to_host);
  bool all_buffer(size_t bytes) const;
  template <typename Work>
  void for_hidden_parts(size_t host, size_t count, std::span<float> rows, std::span<float> sums,
                        Work work);
  template <typename Work>
  void for_kept_parts(size_t host, std::span<float> row, Work work);
  template <typename BytesOf, typename ForParts>
  Result<void> gather(BytesOf bytes_of, ForParts for_parts);
  std::unexpected<Error> give_up(const Error& error);
  bool has_links() const { return rounds_.count() > 0; }
  std::unexpected<Error> lost(size_t host, const Error& error) const;
  Result<void> pass_over(size_t host, size_t out, size_t in);
  Result<void> exchange_with_all(const HostRound& round);
  Result<void> send_and_receive(const HostRound& round);

  HostGroup* group_;
  std::vector<Plan> plans_;
  HostRounds rounds_;
  std::vector<ArenaAddresses> own_ranks_;
  std::vector<std::byte> outgoing_;
  std::vector<std::byte> incoming_;
  RowExchange rows_;
  std::vector<std::byte> command_;
  const Batch* batch_ = nullptr;
  size_t next_round_ = 0;
  // The rows that are outgoing.
  struct Taken {
    size_t to_host = 0;
    size_t bytes = 0;
  };
  std::optional<Taken> taken_;
  Result<void> result_;
  // Written by the worker that exchanges.
  std::atomic<uint64_t> moved_bytes_ = 0;
  std::atomic<int64_t> exchange_ns_ = 0;
};

}  // namespace lockstep
