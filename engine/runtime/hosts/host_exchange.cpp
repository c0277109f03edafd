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

std::vector<std::vector<std::vector<ExchangedRows>>> rounds_of(std::span<const Plan> plans) {
  std::vector<std::vector<std::vector<ExchangedRows>>> rounds;
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

}  // namespace

HostExchange::HostExchange(HostGroup& group, HostRanks ranks, std::vector<Plan> plans)
    : group_(&group),
      ranks_(std::move(ranks)),
      plans_(std::move(plans)),
      rounds_(rounds_of(plans_)),
      outgoing_(most_bytes()),
      incoming_(outgoing_.size()) {}

size_t HostExchange::most_bytes() const {
  size_t most = 0;
  for (const Round& round : rounds_) {
    for (const Range& of_host : ranks_.of_host) {
      size_t bytes = 0;
      for (size_t rank = of_host.begin; rank < of_host.end; ++rank) {
        for (const ExchangedRows& rows : round[rank]) {
          bytes += exchanged_bytes_most(rows, plans_[rank]);
        }
      }
      most = std::max(most, bytes);
    }
  }
  return most;
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

// Brings the rows of this host's ranks together; returns their bytes.
size_t HostExchange::take(const Round& round, size_t to_host) {
  const Range own = ranks_.own();
  std::byte* to = outgoing_.data();
  for (size_t rank = own.begin; rank < own.end; ++rank) {
    for (const ExchangedRows& rows : round[rank]) {
      if (goes_to(rows, to_host)) to = take_rows(rows, *batch_, own_ranks_[rank - own.begin], to);
    }
  }
  return static_cast<size_t>(to - outgoing_.data());
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

Result<void> HostExchange::ask_for_hidden_row(size_t token, HiddenForm form) {
  write_hidden_row(static_cast<uint32_t>(token), form, command_);
  return group_->send_command(command_);
}

Result<void> HostExchange::gather_hidden_row(std::span<float> row, std::span<float> sums) {
  for (size_t host = 1; host < ranks_.of_host.size(); ++host) {
    if (!leads() && host != ranks_.host) continue;
    const Range ranks = ranks_.of_host[host];
    for (size_t rank = ranks.begin; rank < ranks.end; ++rank) {
      const Range columns = plans_[rank].hidden.columns;
      if (columns.empty()) continue;
      const size_t chunk = columns.begin / kChunkColumns;
      const size_t chunks = divide_up(columns.size(), kChunkColumns);
      for (const auto part :
           {row.subspan(columns.begin, columns.size()), sums.subspan(chunk, chunks)}) {
        const auto bytes = std::as_writable_bytes(part);
        auto moved =
            leads() ? group_->link(host).exchange({}, bytes) : group_->link(0).exchange(bytes, {});
        if (!moved) return give_up(lost(leads() ? host : 0, moved.error()).error());
      }
    }
  }
  return {};
}

}  // namespace lockstep
