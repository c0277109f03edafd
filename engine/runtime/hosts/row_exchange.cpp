#include "engine/runtime/hosts/row_exchange.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/collectives/host_channel.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// A wait in which nothing moves sleeps, when it is over its spinning, an eighth of what that has
// lasted, so that it is never longer by more: there is nothing to sleep on that tells of all hosts.
constexpr auto kLongestSleep = std::chrono::milliseconds(1);
constexpr int kSleepDivisor = 8;

}  // namespace

// Counts the time from its making to its end, of one worker at a time.
class RowExchange::Time {
 public:
  explicit Time(RowExchange& exchange)
      : exchange_(exchange), counts_(!exchange.is_timed_.exchange(true)) {}
  Time(const Time&) = delete;
  Time& operator=(const Time&) = delete;
  ~Time() {
    if (!counts_) return;
    const std::chrono::nanoseconds spent = Clock::now() - start_;
    exchange_.time_ns_.fetch_add(spent.count(), std::memory_order_relaxed);
    exchange_.is_timed_.store(false);
  }

 private:
  RowExchange& exchange_;
  const bool counts_;
  const Clock::time_point start_ = Clock::now();
};

RowExchange::RowExchange(const HostRounds& rounds, std::span<std::byte> outgoing, size_t block_rows,
                         size_t batch_tokens)
    : rounds_(rounds),
      outgoing_(outgoing),
      block_rows_(block_rows),
      blocks_most_(divide_up(batch_tokens, block_rows)),
      from_(rounds.host_count()),
      told_(std::make_unique<Told[]>(rounds.ranks().own().size() * blocks_most_)),
      sent_(rounds.host_count()),
      settled_(rounds.host_count()) {
  for (size_t host = 0; host < from_.size(); ++host) {
    if (host != rounds_.ranks().host) {
      from_[host].block.resize(rounds_.token_bytes_most() * block_rows);
    }
  }
}

uint64_t RowExchange::buffer_bytes(const HostRounds& rounds, size_t block_rows) {
  return (rounds.host_count() - 1) * rounds.token_bytes_most() * block_rows;
}

void RowExchange::begin_pass(HostGroup& group, const Batch& batch,
                             std::span<const ArenaAddresses> own_ranks) {
  group_ = &group;
  batch_ = &batch;
  own_ranks_ = own_ranks;
  block_count_ = divide_up(batch.tokens.size(), block_rows_);
  out_round_ = in_round_ = out_blocks_ = out_bytes_ = 0;
  std::ranges::fill(sent_, 0);
  for (From& from : from_) from.blocks = from.bytes = 0;
  failure_.reset();
  has_failed_.store(false, std::memory_order_relaxed);
  begin_round(0);
  publish();
}

Range RowExchange::block(size_t index) const {
  return {index * block_rows_, std::min(batch_->tokens.size(), (index + 1) * block_rows_)};
}

void RowExchange::begin_round(size_t round) {
  current_ = round;
  const bool has_failed = has_failed_.load(std::memory_order_relaxed);
  is_open_ = !has_failed && round < rounds_.count() && takes(round);
  if (!is_open_) return;
  for (size_t rank = 0; rank < own_ranks_.size(); ++rank) {
    for (size_t index = 0; index < block_count_; ++index) {
      told(rank, index).parts.store(0, std::memory_order_relaxed);
      told(rank, index).is_whole.store(false, std::memory_order_relaxed);
    }
  }
}

// await_all() has seen to it that nothing of the round before is left.
void RowExchange::end_round(size_t round) {
  if (has_failed_.load(std::memory_order_relaxed)) return begin_round(round + 1);
  {
    const Time time(*this);
    while (busy_.test_and_set(std::memory_order_acquire)) spin_once({});
    if (out_round_ == round) pack(/*all=*/true);
    current_ = round + 1;
    is_open_ = false;
    advance();
    publish();
    busy_.clear(std::memory_order_release);
  }
  if (!rounds_[round].is_awaited_by_rows) await_all();
  begin_round(round + 1);
}

void RowExchange::pass_round(size_t round, bool has_failed) {
  if (has_failed) has_failed_.store(true, std::memory_order_relaxed);
  out_round_ = in_round_ = round + 1;
  begin_round(round + 1);
}

void RowExchange::end_pass() {
  if (block_count_ <= 1 || failure_) return;
  for (size_t host = 0; host < settled_.size(); ++host) {
    settled_[host] = static_cast<char>(host == rounds_.ranks().host);
  }
  is_ending_ = true;
  wait_until([&] { return std::ranges::find(settled_, 0) == settled_.end(); });
  is_ending_ = false;
}

Result<void> RowExchange::result() const {
  if (failure_) return std::unexpected(*failure_);
  return {};
}

void RowExchange::carry(size_t rank, Range rows, size_t part, size_t whole) {
  if (!is_open_ || rows.empty()) return;
  for (size_t index = rows.begin / block_rows_; index < divide_up(rows.end, block_rows_); ++index) {
    const Range all = block(index);
    const size_t count = common_part(rows, all).size();
    Told& of_block = told(rank, index);
    // Acquires what the other workers have computed, for who takes the rows.
    const uint64_t before = of_block.parts.fetch_add(count * part, std::memory_order_acq_rel);
    if (before + count * part == all.size() * whole) {
      of_block.is_whole.store(true, std::memory_order_release);
    }
  }
  if (has_failed_.load(std::memory_order_relaxed)) return;
  const Time time(*this);
  try_advance({});
}

void RowExchange::await(size_t end) {
  wait_until([&] { return awaited_rows_.load(std::memory_order_acquire) >= end; });
}

void RowExchange::await_all() {
  wait_until([&] { return !is_behind_.load(std::memory_order_acquire); });
}

bool RowExchange::is_computed(size_t block) {
  for (size_t rank = 0; rank < own_ranks_.size(); ++rank) {
    const HostRound& round = rounds_[out_round_];
    if (round.of_rank[rounds_.ranks().own().begin + rank].empty()) continue;
    if (!told(rank, block).is_whole.load(std::memory_order_acquire)) return false;
  }
  return true;
}

// Brings further blocks of the round together, in their order: those that are computed, or all.
void RowExchange::pack(bool all) {
  while (out_blocks_ < block_count_ && (all || is_computed(out_blocks_))) {
    std::byte* const to = outgoing_.data() + out_bytes_;
    const std::byte* const end = rounds_.take(rounds_[out_round_], *batch_, rounds_.ranks().host,
                                              own_ranks_, to, block(out_blocks_));
    out_bytes_ += static_cast<size_t>(end - to);
    ++out_blocks_;
  }
}

bool RowExchange::send() {
  bool moved = false;
  bool is_sent = out_blocks_ == block_count_;
  for (size_t host = 0; host < sent_.size(); ++host) {
    if (host == rounds_.ranks().host || sent_[host] == out_bytes_) continue;
    const auto sent = pieces(host).send_some(outgoing_.first(out_bytes_).subspan(sent_[host]));
    if (!sent) {
      fail(host, sent.error());
      return false;
    }
    moved |= *sent > 0;
    sent_[host] += *sent;
    moved_bytes_.fetch_add(*sent, std::memory_order_relaxed);
    is_sent &= sent_[host] == out_bytes_;
  }
  if (is_sent) {
    ++out_round_;
    out_blocks_ = out_bytes_ = 0;
    std::ranges::fill(sent_, 0);
  }
  return moved;
}

bool RowExchange::receive_from(size_t host) {
  bool moved = false;
  From& from = from_[host];
  const HostRound& round = rounds_[in_round_];
  while (from.blocks < block_count_) {
    const Range rows = block(from.blocks);
    const size_t bytes = rounds_.bytes(round, *batch_, host, rounds_.ranks().host, rows);
    if (from.bytes < bytes) {
      const auto came =
          pieces(host).receive_some(std::span(from.block).first(bytes).subspan(from.bytes));
      if (!came) {
        fail(host, came.error());
        return false;
      }
      moved |= *came > 0;
      from.bytes += *came;
      moved_bytes_.fetch_add(*came, std::memory_order_relaxed);
      if (from.bytes < bytes) return moved;
    }
    rounds_.put(round, *batch_, host, own_ranks_, from.block.data(), rows);
    from.bytes = 0;
    ++from.blocks;
  }
  return moved;
}

bool RowExchange::receive() {
  bool moved = false;
  bool is_here = true;
  for (size_t host = 0; host < from_.size() && !failure_; ++host) {
    if (host == rounds_.ranks().host) continue;
    moved |= receive_from(host);
    is_here &= from_[host].blocks == block_count_;
  }
  if (is_here && !failure_) {
    ++in_round_;
    for (From& from : from_) from.blocks = 0;
  }
  return moved;
}

// Each host that has not yet agreed that the pass has ended is asked once; whether one has.
bool RowExchange::settle() {
  bool moved = false;
  for (size_t host = 0; host < settled_.size(); ++host) {
    if (settled_[host] != 0) continue;
    const auto is_settled = pieces(host).settle();
    if (!is_settled) {
      fail(host, is_settled.error());
      return moved;
    }
    settled_[host] = static_cast<char>(*is_settled);
    moved |= *is_settled;
  }
  return moved;
}

// Moves what goes without waiting; whether anything has.
bool RowExchange::advance() {
  if (is_ending_) return settle();
  bool moved = false;
  for (bool goes_on = true; goes_on && !failure_ && is_active(out_round_);) {
    const size_t round = out_round_;
    if (round == current_) pack(/*all=*/false);
    moved |= send();
    goes_on = out_round_ != round;
  }
  for (bool goes_on = true; goes_on && !failure_ && is_active(in_round_);) {
    const size_t round = in_round_;
    moved |= receive();
    goes_on = in_round_ != round;
  }
  return moved;
}

// Tells the workers that wait what is here: releases the rows that were put into memory.
void RowExchange::publish() {
  size_t rows = SIZE_MAX;
  if (in_round_ < current_) {
    for (size_t host = 0; host < from_.size(); ++host) {
      if (host != rounds_.ranks().host) rows = std::min(rows, from_[host].blocks * block_rows_);
    }
  }
  awaited_rows_.store(rows, std::memory_order_release);
  is_behind_.store(in_round_ < current_ || out_round_ < current_, std::memory_order_release);
}

// `quiet`: for how long nothing has moved while somebody waited.
bool RowExchange::try_advance(std::chrono::nanoseconds quiet) {
  if (busy_.test_and_set(std::memory_order_acquire)) return false;
  bool moved = false;
  if (!failure_) {
    moved = advance();
    if (!moved && quiet > std::chrono::nanoseconds::zero()) fail_silent(quiet);
    publish();
  }
  busy_.clear(std::memory_order_release);
  return moved;
}

template <typename Done>
void RowExchange::wait_until(Done done) {
  const auto is_over = [&] { return done() || has_failed_.load(std::memory_order_acquire); };
  if (is_over()) return;
  const Time time(*this);
  Clock::time_point quiet_since = Clock::now();
  uint64_t moved = moved_bytes();
  while (!is_over()) {
    const auto now = Clock::now();
    const uint64_t before = std::exchange(moved, moved_bytes());
    if (moved != before) quiet_since = now;
    try_advance(now - quiet_since);
    if (is_over()) return;
    // As long as bytes move, they are helped on.
    const auto quiet = now - quiet_since;
    if (quiet < kSpinTime) {
      spin_once(quiet);
      continue;
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(quiet / kSleepDivisor, kLongestSleep));
  }
}

// Names the first host from which something is to come, or else to which something is to go.
void RowExchange::fail_silent(std::chrono::nanoseconds quiet) {
  for (size_t host = 0; host < from_.size(); ++host) {
    if (host == rounds_.ranks().host) continue;
    bool is_missing = settled_[host] == 0;
    if (!is_ending_) {
      is_missing = in_round_ < current_ ? from_[host].blocks < block_count_
                                        : out_round_ < current_ && sent_[host] < out_bytes_;
    }
    const auto patience = pieces(host).patience();
    if (!is_missing || quiet < patience) continue;
    return fail(host, machine_refused("no byte has moved for {} ms", patience.count()).error());
  }
}

void RowExchange::fail(size_t host, const Error& error) {
  failure_ = machine_refused("{} is lost: {}", group_->name(host), error.message).error();
  has_failed_.store(true, std::memory_order_release);
}

}  // namespace lockstep
