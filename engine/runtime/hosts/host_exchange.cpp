#include "engine/runtime/hosts/host_exchange.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/check.h"
#include "engine/hosts/batch_message.h"

namespace lockstep {
namespace {

constexpr auto kWordsComeWithin = std::chrono::milliseconds(500);

// Rank 0's logits are read on its host alone.
bool goes_to(const ExchangedRows& rows, size_t host) {
  return !rows.is_of_logits() || host == 0;
}

using Rounds = std::vector<std::vector<std::vector<ExchangedRows>>>;

Rounds rounds_of(std::span<const Plan> plans) {
  Rounds rounds;
  const std::vector<Step>& steps = plans.front().steps;
  for (const Plan& plan : plans) {
    CHECK(plan.steps.size() == steps.size(), "rank {} has {} steps, rank 0 has {}", plan.rank,
          plan.steps.size(), steps.size());
  }
  for (size_t index = 0; index < steps.size(); ++index) {
    if (steps[index].meet != Meet::kAllRanks) continue;
    auto& round = rounds.emplace_back();
    for (const Plan& plan : plans) round.push_back(exchanged_rows(plan.steps[index]));
  }
  return rounds;
}

// The part of a row that these ranks have, with the sums of its chunks.
size_t hidden_row_bytes(std::span<const Plan> plans, const Range& ranks) {
  size_t floats = 0;
  for (size_t rank = ranks.begin; rank < ranks.end; ++rank) {
    const size_t columns = plans[rank].hidden.columns.size();
    floats += columns + divide_up(columns, kChunkColumns);
  }
  return floats * sizeof(float);
}

// The bytes of one exchange with another host, at most.
size_t most_bytes(const Rounds& rounds, std::span<const Plan> plans, const HostRanks& ranks) {
  size_t most = 0;
  const size_t hidden_rows = hidden_rows_at_once(plans.front().hidden.width);
  for (const Range& of_host : ranks.of_host) {
    most = std::max(most, hidden_rows * hidden_row_bytes(plans, of_host));
  }
  for (const auto& round : rounds) {
    for (const Range& of_host : ranks.of_host) {
      size_t bytes = 0;
      for (size_t rank = of_host.begin; rank < of_host.end; ++rank) {
        for (const ExchangedRows& rows : round[rank]) {
          bytes += exchanged_bytes_most(rows, plans[rank]);
        }
      }
      most = std::max(most, bytes);
    }
  }
  return most;
}

}  // namespace

HostExchange::HostExchange(HostGroup& group, HostRanks ranks, std::vector<Plan> plans)
    : group_(&group),
      ranks_(std::move(ranks)),
      plans_(std::move(plans)),
      rounds_(rounds_of(plans_)),
      outgoing_(most_bytes(rounds_, plans_, ranks_)),
      incoming_(outgoing_.size()) {}

size_t hidden_rows_at_once(size_t width) {
  constexpr size_t kBytes = size_t{1} << 20U;
  return std::max<size_t>(1, kBytes / (std::max<size_t>(1, width) * sizeof(float)));
}

uint64_t host_buffer_bytes(std::span<const Plan> plans, const HostRanks& ranks) {
  return 2 * most_bytes(rounds_of(plans), plans, ranks);  // what goes, and what comes
}

size_t HostExchange::bytes_of(const Round& round, size_t from_host, size_t to_host) const {
  const Range from = ranks_.of_host[from_host];
  size_t bytes = 0;
  for (size_t rank = from.begin; rank < from.end; ++rank) {
    for (const ExchangedRows& rows : round[rank]) {
      if (goes_to(rows, to_host)) bytes += exchanged_bytes(rows, *batch_);
    }
  }
  return bytes;
}

// Brings the rows of this host's ranks together, unless they are there from the exchange with
// another host; returns their bytes.
size_t HostExchange::take(const Round& round, size_t to_host) {
  const Range own = ranks_.own();
  const auto has_logits = [&] {
    return std::ranges::any_of(round, [](const std::vector<ExchangedRows>& rows) {
      return std::ranges::any_of(rows, &ExchangedRows::is_of_logits);
    });
  };
  const bool is_taken = taken_ && ((taken_->to_host == 0) == (to_host == 0) || !has_logits());
  if (is_taken) return taken_->bytes;
  std::byte* to = outgoing_.data();
  for (size_t rank = own.begin; rank < own.end; ++rank) {
    for (const ExchangedRows& rows : round[rank]) {
      if (goes_to(rows, to_host)) to = take_rows(rows, *batch_, own_ranks_[rank - own.begin], to);
    }
  }
  taken_ = Taken{to_host, static_cast<size_t>(to - outgoing_.data())};
  return taken_->bytes;
}

// Every rank here has a copy of what another has computed; of the logits there is one.
void HostExchange::put(const Round& round, size_t from_host) {
  const Range from = ranks_.of_host[from_host];
  const std::byte* at = incoming_.data();
  for (size_t rank = from.begin; rank < from.end; ++rank) {
    for (const ExchangedRows& rows : round[rank]) {
      if (!goes_to(rows, ranks_.host)) continue;
      const std::byte* end = at;
      const size_t copies = rows.is_of_logits() ? 1 : own_ranks_.size();
      for (size_t own = 0; own < copies; ++own) end = put_rows(rows, *batch_, own_ranks_[own], at);
      at = end;
    }
  }
}

Result<void> HostExchange::begin_pass(const Batch& batch) {
  batch_ = &batch;
  next_round_ = 0;
  result_ = {};
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
  if (!result_) return give_up(result_.error());
  return {};
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
  const Round& round = rounds_[next_round_++];
  if (!result_) return;
  const auto start = std::chrono::steady_clock::now();
  taken_.reset();
  result_ = exchange_with_all(round);
  const auto spent = std::chrono::steady_clock::now() - start;
  exchange_ns_.fetch_add(std::chrono::nanoseconds(spent).count(), std::memory_order_relaxed);
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
  for (size_t host = 0; host < ranks_.of_host.size(); ++host) {
    if (host != ranks_.host && !group_->link(host).buffers(bytes)) return false;
  }
  return true;
}

Result<void> HostExchange::exchange_with_all(const Round& round) {
  const size_t hosts = ranks_.of_host.size();
  if (hosts > 2 && all_buffer(bytes_of(round, ranks_.host, 0))) return send_and_receive(round);
  // In the order of the hosts' numbers, which all take, so that no two wait for each other.
  for (size_t host = 0; host < hosts; ++host) {
    if (host == ranks_.host) continue;
    const size_t out = take(round, host);
    const size_t in = bytes_of(round, host, ranks_.host);
    if (auto moved = pass_over(host, out, in); !moved) return moved;
    put(round, host);
  }
  return {};
}

Result<void> HostExchange::send_and_receive(const Round& round) {
  for (size_t host = 0; host < ranks_.of_host.size(); ++host) {
    if (host == ranks_.host) continue;
    if (auto sent = pass_over(host, take(round, host), 0); !sent) return sent;
  }
  for (size_t host = 0; host < ranks_.of_host.size(); ++host) {
    if (host == ranks_.host) continue;
    auto received = pass_over(host, 0, bytes_of(round, host, ranks_.host));
    if (!received) return received;
    put(round, host);
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
  const Range ranks = ranks_.of_host[host];
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

Result<void> HostExchange::gather_hidden_rows(size_t count, std::span<float> rows,
                                              std::span<float> sums) {
  for (size_t host = 1; host < ranks_.of_host.size(); ++host) {
    if (!leads() && host != ranks_.host) continue;
    const size_t bytes = count * hidden_row_bytes(plans_, ranks_.of_host[host]);
    if (bytes == 0) continue;
    std::byte* outgoing = outgoing_.data();
    if (!leads()) {
      for_hidden_parts(host, count, rows, sums, [&](std::span<std::byte> part) {
        outgoing = std::ranges::copy(part, outgoing).out;
      });
    }
    const size_t other = leads() ? host : 0;
    auto moved = pass_over(other, leads() ? 0 : bytes, leads() ? bytes : 0);
    if (!moved) return give_up(moved.error());
    if (!leads()) continue;
    const std::byte* incoming = incoming_.data();
    for_hidden_parts(host, count, rows, sums, [&](std::span<std::byte> part) {
      std::copy_n(incoming, part.size(), part.data());
      incoming += part.size();
    });
  }
  return {};
}

}  // namespace lockstep
