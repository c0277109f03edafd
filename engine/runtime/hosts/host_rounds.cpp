#include "engine/runtime/hosts/host_rounds.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// Rank 0's logits are read on its host alone.
bool goes_to(const ExchangedRows& rows, size_t host) {
  return !rows.is_of_logits() || host == 0;
}

bool is_by_tokens(const HostRound& round) {
  return std::ranges::all_of(round.of_rank, [](const std::vector<ExchangedRows>& all) {
    return std::ranges::all_of(all, [](const ExchangedRows& rows) {
      return rows.rows == Rows::kTokens && rows.embed == nullptr && !rows.is_of_logits();
    });
  });
}

// All ranks' plans have the same steps.
bool is_product_of_tokens(const Step& step) {
  const auto* const product = std::get_if<MatmulStep>(&step.work);
  return product != nullptr && product->rows == Rows::kTokens;
}

std::vector<HostRound> rounds_of(std::span<const Plan> plans) {
  std::vector<HostRound> rounds;
  if (std::holds_alternative<GpuAreas>(plans.front().areas)) return rounds;
  const std::vector<Step>& steps = plans.front().steps;
  for (const Plan& plan : plans) {
    CHECK(plan.steps.size() == steps.size(), "rank {} has {} steps, rank 0 has {}", plan.rank,
          plan.steps.size(), steps.size());
  }
  for (size_t index = 0; index < steps.size(); ++index) {
    if (steps[index].meet != Meet::kAllRanks) continue;
    HostRound& round = rounds.emplace_back();
    for (const Plan& plan : plans) round.of_rank.push_back(exchanged_rows(plan.steps[index]));
    round.is_by_tokens = is_by_tokens(round);
    round.is_awaited_by_rows =
        round.is_by_tokens && index + 1 < steps.size() && is_product_of_tokens(steps[index + 1]);
  }
  return rounds;
}

}  // namespace

bool HostRound::has_logits() const {
  return std::ranges::any_of(of_rank, [](const std::vector<ExchangedRows>& rows) {
    return std::ranges::any_of(rows, &ExchangedRows::is_of_logits);
  });
}

HostRounds::HostRounds(std::span<const Plan> plans, HostRanks ranks)
    : ranks_(std::move(ranks)), rounds_(rounds_of(plans)) {
  for (const HostRound& round : rounds_) {
    for (const Range& of_host : ranks_.of_host) {
      size_t bytes = 0;
      size_t token_bytes = 0;
      for (size_t rank = of_host.begin; rank < of_host.end; ++rank) {
        for (const ExchangedRows& rows : round.of_rank[rank]) {
          bytes += exchanged_bytes_most(rows, plans[rank]);
          token_bytes += rows.row_bytes;
        }
      }
      bytes_most_ = std::max(bytes_most_, bytes);
      if (round.is_by_tokens) token_bytes_most_ = std::max(token_bytes_most_, token_bytes);
    }
  }
}

size_t HostRounds::bytes(const HostRound& round, const Batch& batch, size_t from_host,
                         size_t to_host, Range among) const {
  const Range from = ranks_.of_host[from_host];
  size_t bytes = 0;
  for (size_t rank = from.begin; rank < from.end; ++rank) {
    for (const ExchangedRows& rows : round.of_rank[rank]) {
      if (goes_to(rows, to_host)) bytes += exchanged_bytes(rows, batch, among);
    }
  }
  return bytes;
}

std::byte* HostRounds::take(const HostRound& round, const Batch& batch, size_t to_host,
                            std::span<const ArenaAddresses> own_ranks, std::byte* to,
                            Range among) const {
  const Range own = ranks_.own();
  for (size_t rank = own.begin; rank < own.end; ++rank) {
    for (const ExchangedRows& rows : round.of_rank[rank]) {
      if (!goes_to(rows, to_host)) continue;
      to = take_rows(rows, batch, own_ranks[rank - own.begin], to, among);
    }
  }
  return to;
}

// Every rank here has a copy of what another has computed; of the logits there is one.
void HostRounds::put(const HostRound& round, const Batch& batch, size_t from_host,
                     std::span<const ArenaAddresses> own_ranks, const std::byte* from,
                     Range among) const {
  const Range ranks = ranks_.of_host[from_host];
  for (size_t rank = ranks.begin; rank < ranks.end; ++rank) {
    for (const ExchangedRows& rows : round.of_rank[rank]) {
      if (!goes_to(rows, ranks_.host)) continue;
      const std::byte* end = from;
      const size_t copies = rows.is_of_logits() ? 1 : own_ranks.size();
      for (size_t own = 0; own < copies; ++own) {
        end = put_rows(rows, batch, own_ranks[own], from, among);
      }
      from = end;
    }
  }
}

}  // namespace lockstep
