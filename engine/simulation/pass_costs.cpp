#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "engine/scheduler/scheduler.h"
#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

enum Part : size_t { kPass, kPrompts, kPromptToken, kGeneratedToken, kGeneratedKey, kPartCount };
using Parts = std::array<double, kPartCount>;

// Each round brings every part nearer to its best value; so many are far more than needed.
constexpr int kRounds = 20'000;

double sum_of_products(const Parts& one, const Parts& other) {
  double sum = 0;
  for (size_t part = 0; part < kPartCount; ++part) sum += one[part] * other[part];
  return sum;
}

Parts parts_of(const PassCosts& costs) {
  return {costs.pass, costs.prompts, costs.prompt_token, costs.generated_token,
          costs.generated_key};
}

// The parts of all passes of a measurement, and the time that they took.
Parts amounts(const BenchRow& row, size_t batch_tokens) {
  Parts amounts = {};
  const auto sequences = static_cast<double>(row.sequences);
  if (row.prompt_tokens > 0) {
    const size_t tokens = row.prompt_tokens * row.sequences;
    const size_t passes = (tokens + batch_tokens - 1) / batch_tokens;
    amounts[kPass] = static_cast<double>(passes);
    amounts[kPrompts] = amounts[kPass];
    amounts[kPromptToken] = sequences * prompt_work(row.depth_tokens, row.prompt_tokens);
    return amounts;
  }
  const auto tokens = static_cast<double>(row.generated_tokens);
  amounts[kPass] = tokens;
  amounts[kGeneratedToken] = tokens * sequences;
  amounts[kGeneratedKey] =
      amounts[kGeneratedToken] * (static_cast<double>(row.depth_tokens) + (tokens + 1) / 2);
  return amounts;
}

double seconds_of(const BenchRow& row) {
  return static_cast<double>((row.prompt_tokens + row.generated_tokens) * row.sequences) /
         row.tokens_per_second;
}

Result<void> check_rows(std::span<const BenchRow> rows) {
  std::set<size_t> prompts;
  std::set<size_t> side_by_side;
  for (const BenchRow& row : rows) {
    if (row.prompt_tokens > 0) prompts.insert(row.prompt_tokens);
    if (row.generated_tokens > 0) side_by_side.insert(row.sequences);
  }
  if (prompts.size() >= 2 && side_by_side.size() >= 2) return {};
  return invalid_input(
      "has {} lengths of prompts and generation of {} numbers of sequences, but two of each are "
      "needed to tell what a pass costs by its tokens; measure with `lockstepd bench --json "
      "--prompt 64,512 --generate 32 --sequences 1,8 --depth 0,2048`",
      prompts.size(), side_by_side.size());
}

}  // namespace

double pass_seconds(const PassCosts& costs, const Schedule& schedule) {
  double sum = costs.pass;
  bool has_prompts = false;
  for (const Chunk& chunk : schedule.chunks) {
    if (!chunk.generated) {
      has_prompts = true;
      sum += costs.prompt_token * prompt_work(chunk.begin, chunk.count);
      continue;
    }
    const auto tokens = static_cast<double>(chunk.count);
    const double keys = static_cast<double>(chunk.begin) + (tokens + 1) / 2;
    sum += tokens * (costs.generated_token + costs.generated_key * keys);
  }
  return has_prompts ? sum + costs.prompts : sum;
}

Result<PassCosts> fit_pass_costs(std::span<const BenchRow> rows, size_t batch_tokens) {
  if (const auto told = check_rows(rows); !told) return std::unexpected(told.error());
  std::set<size_t> depths;
  for (const BenchRow& row : rows) {
    if (row.generated_tokens > 0) depths.insert(row.depth_tokens);
  }
  const bool has_depths = depths.size() >= 2;
  std::array<Parts, kPartCount> products = {};
  Parts wanted = {};
  for (const BenchRow& row : rows) {
    Parts relative = amounts(row, batch_tokens);
    if (!has_depths) relative[kGeneratedKey] = 0;
    for (double& amount : relative) amount /= seconds_of(row);
    for (size_t part = 0; part < kPartCount; ++part) {
      wanted[part] += relative[part];
      for (size_t other = 0; other < kPartCount; ++other) {
        products[part][other] += relative[part] * relative[other];
      }
    }
  }
  Parts parts = {};
  for (int round = 0; round < kRounds; ++round) {
    for (size_t part = 0; part < kPartCount; ++part) {
      if (products[part][part] == 0) continue;
      const double others =
          sum_of_products(products[part], parts) - products[part][part] * parts[part];
      parts[part] = std::max((wanted[part] - others) / products[part][part], 0.0);
    }
  }
  return PassCosts{.pass = parts[kPass],
                   .prompts = parts[kPrompts],
                   .prompt_token = parts[kPromptToken],
                   .generated_token = parts[kGeneratedToken],
                   .generated_key = parts[kGeneratedKey]};
}

double worst_deviation(const PassCosts& costs, std::span<const BenchRow> rows,
                       size_t batch_tokens) {
  double worst = 0;
  for (const BenchRow& row : rows) {
    const double expected = sum_of_products(amounts(row, batch_tokens), parts_of(costs));
    worst = std::max(worst, std::abs(expected / seconds_of(row) - 1));
  }
  return worst;
}

}  // namespace lockstep
