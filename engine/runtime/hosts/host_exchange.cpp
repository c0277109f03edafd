#include "engine/runtime/hosts/host_exchange.h"

#include <algorithm>
#include <ranges>
#include <thread>
#include <utility>

#include "engine/base/check.h"
#include "engine/hosts/batch_message.h"

namespace lockstep {
namespace {

constexpr auto kWordsComeWithin = std::chrono::milliseconds(500);

// The part of a row that these ranks have, with the sums of its chunks.
size_t hidden_row_bytes(std::span<const Plan> plans, const Range& ranks) {
  size_t floats = 0;
  for (size_t rank = ranks.begin; rank < ranks.end; ++rank) {
    const size_t columns = plans[rank].hidden.columns.size();
    floats += columns + divide_up(columns, kChunkColumns);
  }
  return floats * sizeof(float);
}

// The part of a token's kept rows that these ranks have.
size_t kept_row_bytes(std::span<const Plan> plans, const Range& ranks) {
  size_t floats = 0;
  for (size_t rank = ranks.begin; rank < ranks.end; ++rank) {
    for (const KeptRows& kept : plans[rank].kept) floats += kept.columns.size();
  }
  return floats * sizeof(float);
}

// The bytes of one exchange with another host, at most.
size_t most_bytes(const HostRounds& rounds, std::span<const Plan> plans) {
  size_t most = rounds.bytes_most();
  const size_t hidden_rows = hidden_rows_at_once(plans.front().hidden.width);
  // The leader sends none.
  for (const Range& of_host : std::span(rounds.ranks().of_host).subspan(1)) {
    most = std::max(
        {most, hidden_rows * hidden_row_bytes(plans, of_host), kept_row_bytes(plans, of_host)});
  }
  return most;
}

}  // namespace

HostExchange::HostExchange(HostGroup& group, HostRanks ranks, std::vector<Plan> plans,
                           size_t block_rows)
    : group_(&group),
      plans_(std::move(plans)),
      rounds_(plans_, std::move(ranks)),
      outgoing_(most_bytes(rounds_, plans_)),
      incoming_(outgoing_.size()),
      rows_(rounds_, outgoing_, block_rows, plans_.front().batch_tokens) {}

size_t hidden_rows_at_once(size_t width) {
  constexpr size_t kBytes = size_t{1} << 20U;
  return std::max<size_t>(1, kBytes / (std::max<size_t>(1, width) * sizeof(float)));
}

uint64_t host_buffer_bytes(std::span<const Plan> plans, const HostRanks& ranks) {
  const HostRounds rounds(plans, ranks);
  const uint64_t in_blocks = RowExchange::buffer_bytes(rounds, kExchangedBlockRows);
  return 2 * most_bytes(rounds, plans) + in_blocks;  // what goes, and what comes
}

// Brings the rows of this host's ranks together, unless they are there from the exchange with
// another host; returns their bytes.
size_t HostExchange::take(const HostRound& round, size_t to_host) {
  const bool is_taken = taken_ && ((taken_->to_host == 0) == (to_host == 0) || !round.has_logits());
  if (is_taken) return taken_->bytes;
  const std::byte* const end = rounds_.take(round, *batch_, to_host, own_ranks_, outgoing_.data());
  taken_ = Taken{to_host, static_cast<size_t>(end - outgoing_.data())};
  return taken_->bytes;
}

Result<void> HostExchange::begin_pass(const Batch& batch) {
  batch_ = &batch;
  next_round_ = 0;
  result_ = {};
  if (has_links()) rows_.begin_pass(*group_, batch, own_ranks_);
  if (!leads()) return {};
  write_pass(batch, command_);
  result_ = group_->send_command(command_);
  if (!result_) {
    batch_ = nullptr;
    return give_up(result_.error());
  }
  return {};
}

Result<void> HostExchange::finish_pass() {
  batch_ = nullptr;
  if (result_) rows_.end_pass();
  if (result_) result_ = rows_.result();
  if (!result_) return give_up(result_.error());
  return {};
}

std::unexpected<Error> HostExchange::fail_pass(const Error& error) {
  batch_ = nullptr;
  return give_up(error);
}

// The group knows best why: its words may come a little behind the end of the links.
std::unexpected<Error> HostExchange::give_up(const Error& error) {
  constexpr auto kLook = std::chrono::milliseconds(10);
  for (auto waited = kLook; waited <= kWordsComeWithin; waited += kLook) {
    if (group_->failure()) break;
    std::this_thread::sleep_for(kLook);
  }
  if (const auto failure = group_->failure()) return std::unexpected(*failure);
  group_->fail(error);
  return std::unexpected(error);
}

void HostExchange::exchange() {
  const size_t round = next_round_++;
  if (!result_) return;
  if (rows_.takes(round)) {
    rows_.end_round(round);
    result_ = rows_.result();
    return;
  }
  // Nothing goes that was computed of rows which have not come.
  result_ = rows_.result();
  if (!result_) return;
  const auto start = std::chrono::steady_clock::now();
  taken_.reset();
  result_ = exchange_with_all(rounds_[round]);
  const auto spent = std::chrono::steady_clock::now() - start;
  exchange_ns_.fetch_add(std::chrono::nanoseconds(spent).count(), std::memory_order_relaxed);
  rows_.pass_round(round, !result_);
}

std::unexpected<Error> HostExchange::lost(size_t host, const Error& error) const {
  return machine_refused("{} is lost: {}", group_->name(host), error.message);
}

// Sends the first so many bytes of what is outgoing, and receives so many.
Result<void> HostExchange::pass_over(size_t host, size_t out, size_t in) {
  if (out + in == 0) return {};
  auto moved =
      group_->link(host).exchange(std::span(outgoing_).first(out), std::span(incoming_).first(in));
  if (!moved) return lost(host, moved.error());
  moved_bytes_.fetch_add(out + in, std::memory_order_relaxed);
  return {};
}

bool HostExchange::all_buffer(size_t bytes) const {
  for (size_t host = 0; host < rounds_.ranks().of_host.size(); ++host) {
    if (host != rounds_.ranks().host && !group_->link(host).buffers(bytes)) return false;
  }
  return true;
}

Result<void> HostExchange::exchange_with_all(const HostRound& round) {
  const size_t hosts = rounds_.ranks().of_host.size();
  if (hosts > 2 && all_buffer(rounds_.bytes(round, *batch_, rounds_.ranks().host, 0)))
    return send_and_receive(round);
  // In the order of the hosts' numbers, which all take, so that no two wait for each other.
  for (size_t host = 0; host < hosts; ++host) {
    if (host == rounds_.ranks().host) continue;
    const size_t out = take(round, host);
    const size_t in = rounds_.bytes(round, *batch_, host, rounds_.ranks().host);
    if (auto moved = pass_over(host, out, in); !moved) return moved;
    rounds_.put(round, *batch_, host, own_ranks_, incoming_.data());
  }
  return {};
}

Result<void> HostExchange::send_and_receive(const HostRound& round) {
  for (size_t host = 0; host < rounds_.ranks().of_host.size(); ++host) {
    if (host == rounds_.ranks().host) continue;
    if (auto sent = pass_over(host, take(round, host), 0); !sent) return sent;
  }
  for (size_t host = 0; host < rounds_.ranks().of_host.size(); ++host) {
    if (host == rounds_.ranks().host) continue;
    auto received = pass_over(host, 0, rounds_.bytes(round, *batch_, host, rounds_.ranks().host));
    if (!received) return received;
    rounds_.put(round, *batch_, host, own_ranks_, incoming_.data());
  }
  return {};
}

Result<void> HostExchange::ask_for_hidden_rows(size_t first_token, size_t count, HiddenForm form) {
  write_hidden_rows(static_cast<uint32_t>(first_token), static_cast<uint32_t>(count), form,
                    command_);
  return group_->send_command(command_);
}

// Calls work(part) for the parts of rows that a host's ranks have, in the order in which they
// travel.
template <typename Work>
void HostExchange::for_hidden_parts(size_t host, size_t count, std::span<float> rows,
                                    std::span<float> sums, Work work) {
  const Range ranks = rounds_.ranks().of_host[host];
  const size_t width = rows.size() / count;
  const size_t chunks_of_row = sums.size() / count;
  for (size_t row = 0; row < count; ++row) {
    for (size_t rank = ranks.begin; rank < ranks.end; ++rank) {
      const Range columns = plans_[rank].hidden.columns;
      if (columns.empty()) continue;
      const size_t chunk = columns.begin / kChunkColumns;
      const size_t chunks = divide_up(columns.size(), kChunkColumns);
      work(std::as_writable_bytes(rows.subspan(row * width + columns.begin, columns.size())));
      work(std::as_writable_bytes(sums.subspan(row * chunks_of_row + chunk, chunks)));
    }
  }
}

// As for_hidden_parts(), of one token's kept rows.
template <typename Work>
void HostExchange::for_kept_parts(size_t host, std::span<float> row, Work work) {
  const Range ranks = rounds_.ranks().of_host[host];
  for (size_t rank = ranks.begin; rank < ranks.end; ++rank) {
    size_t begin = 0;
    for (const KeptRows& kept : plans_[rank].kept) {
      const Range& columns = kept.columns;
      work(std::as_writable_bytes(row.subspan(begin + columns.begin, columns.size())));
      begin += kept.width;
    }
  }
}

// Brings to the leader what each host has: bytes_of(host) bytes, in the parts of
// for_parts(host, work).
template <typename BytesOf, typename ForParts>
Result<void> HostExchange::gather(BytesOf bytes_of, ForParts for_parts) {
  for (size_t host = 1; host < rounds_.ranks().of_host.size(); ++host) {
    if (!leads() && host != rounds_.ranks().host) continue;
    const size_t bytes = bytes_of(host);
    if (bytes == 0) continue;
    std::byte* outgoing = outgoing_.data();
    if (!leads()) {
      for_parts(host, [&](std::span<std::byte> part) {
        outgoing = std::ranges::copy(part, outgoing).out;
      });
    }
    const size_t other = leads() ? host : 0;
    auto moved = pass_over(other, leads() ? 0 : bytes, leads() ? bytes : 0);
    if (!moved) return give_up(moved.error());
    if (!leads()) continue;
    const std::byte* incoming = incoming_.data();
    for_parts(host, [&](std::span<std::byte> part) {
      std::copy_n(incoming, part.size(), part.data());
      incoming += part.size();
    });
  }
  return {};
}

Result<void> HostExchange::gather_hidden_rows(size_t count, std::span<float> rows,
                                              std::span<float> sums) {
  return gather(
      [&](size_t host) { return count * hidden_row_bytes(plans_, rounds_.ranks().of_host[host]); },
      [&](size_t host, const auto& work) { for_hidden_parts(host, count, rows, sums, work); });
}

bool HostExchange::others_keep_rows() const {
  return std::ranges::any_of(rounds_.ranks().of_host | std::views::drop(1),
                             [&](const Range& ranks) { return kept_row_bytes(plans_, ranks) > 0; });
}

Result<void> HostExchange::ask_for_kept_rows(size_t token) {
  write_kept_rows(static_cast<uint32_t>(token), command_);
  return group_->send_command(command_);
}

Result<void> HostExchange::gather_kept_rows(std::span<float> row) {
  return gather([&](size_t host) { return kept_row_bytes(plans_, rounds_.ranks().of_host[host]); },
                [&](size_t host, const auto& work) { for_kept_parts(host, row, work); });
}

}  // namespace lockstep
