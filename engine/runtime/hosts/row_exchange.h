// Exchanges rows between hosts in blocks while steps compute: a block goes as soon as every rank
// here has computed its rows of it, and a product begins with the blocks that have come. For rounds
// of large batches. Workers call it between their tasks, and one of them at a time moves what goes
// without waiting: no thread of its own, no wait but for what the next task reads.
//
// A round's blocks go from its own step on, and come until the end of the step that follows: so
// while that one computes there may be two rounds, of which each direction moves the first one to
// its end before it goes on to the second.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/range.h"
#include "engine/base/result.h"
#include "engine/graph/arenas.h"
#include "engine/hosts/host_group.h"
#include "engine/pass/batch.h"
#include "engine/pass/row_carrier.h"
#include "engine/runtime/hosts/host_rounds.h"

namespace lockstep {

class RowExchange final : public RowCarrier {
 public:
  // `rounds` must outlive this. `outgoing`: space for the largest round, which is used between this
  // object's rounds by others. `block_rows`: rows that travel together, the same on all hosts.
  RowExchange(const HostRounds& rounds, std::span<std::byte> outgoing, size_t block_rows,
              size_t batch_tokens);

  // The bytes that it takes beside `outgoing`.
  static uint64_t buffer_bytes(const HostRounds& rounds, size_t block_rows);

  // Between passes. All must live until the pass has ended.
  void begin_pass(HostGroup& group, const Batch& batch, std::span<const ArenaAddresses> own_ranks);

  // The next three by one worker where all ranks have met, in the order of rounds. Whether this
  // round goes in blocks: the same on all hosts.
  bool takes(size_t round) const { return block_count_ > 1 && rounds_[round].is_by_tokens; }
  // It does, and its step has ended: returns when all rows have gone and come, or at once where the
  // next step awaits them.
  void end_round(size_t round);
  // It has gone another way, or has failed so.
  void pass_round(size_t round, bool has_failed);

  // Behind all rounds, before this host turns to something else: returns when no other host needs
  // its help for any rows of the pass.
  void end_pass();

  // Between steps and passes: why it has failed.
  Result<void> result() const;

  void carry(size_t rank, Range rows, size_t part, size_t whole) override;
  void await(size_t end) override;
  void await_all() override;

  // As HostExchange's. Any thread.
  uint64_t moved_bytes() const { return moved_bytes_.load(std::memory_order_relaxed); }
  std::chrono::nanoseconds time() const {
    return std::chrono::nanoseconds(time_ns_.load(std::memory_order_relaxed));
  }

 private:
  // Blocks of a round that have come from a host, and the bytes of the next one that are here.
  struct From {
    size_t blocks = 0;
    size_t bytes = 0;
    std::vector<std::byte> block;
  };
  // The parts of a block of one rank's rows that workers have told of.
  struct Told {
    std::atomic<uint64_t> parts = 0;
    std::atomic<bool> is_whole = false;  // set with release, for who takes the rows
  };
  class Time;

  Range block(size_t index) const;
  BytePieces& pieces(size_t host) const { return group_->link(host).pieces(); }
  Told& told(size_t rank, size_t block) { return told_[rank * blocks_most_ + block]; }
  void begin_round(size_t round);
  bool is_active(size_t round) const { return round < current_ || (round == current_ && is_open_); }
  bool is_computed(size_t block);
  void pack(bool all);
  bool send();
  bool receive_from(size_t host);
  bool receive();
  bool advance();
  bool settle();
  void publish();
  bool try_advance(std::chrono::nanoseconds quiet);
  template <typename Done>
  void wait_until(Done done);
  void fail_silent(std::chrono::nanoseconds quiet);
  void fail(size_t host, const Error& error);

  const HostRounds& rounds_;
  const std::span<std::byte> outgoing_;
  const size_t block_rows_;
  const size_t blocks_most_;
  std::vector<From> from_;  // by host
  std::unique_ptr<Told[]> told_;

  // A pass's, written where no worker is in a step.
  HostGroup* group_ = nullptr;
  const Batch* batch_ = nullptr;
  std::span<const ArenaAddresses> own_ranks_;
  bool is_open_ = false;  // the step at hand brings a round in blocks
  size_t block_count_ = 0;
  size_t current_ = 0;  // the round of the step at hand

  // Held by who moves bytes; guards what follows.
  std::atomic_flag busy_;
  size_t out_round_ = 0;   // that is to go, if it is active, from its beginning on
  size_t out_blocks_ = 0;  // of it that are outgoing
  size_t out_bytes_ = 0;
  std::vector<size_t> sent_;   // of these bytes, by host
  size_t in_round_ = 0;        // that is to come, likewise
  bool is_ending_ = false;     // the pass: its words go and come
  std::vector<char> settled_;  // of these, by host
  std::optional<Error> failure_;

  std::atomic<bool> has_failed_ = false;
  // Rows of the round before the step at hand's that are here; stored with release.
  std::atomic<size_t> awaited_rows_ = SIZE_MAX;
  // Some of that round's rows are still to go or to come; likewise.
  std::atomic<bool> is_behind_ = false;
  std::atomic<uint64_t> moved_bytes_ = 0;
  std::atomic<int64_t> time_ns_ = 0;
  std::atomic<bool> is_timed_ = false;  // somebody waits, and counts the time
};

}  // namespace lockstep
