#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "engine/scheduler/scheduler.h"
#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

// Behind these stand the passes of each number of generated tokens.
enum Part : size_t { kPrompts, kPromptToken, kPromptKey, kGeneratedKey, kFirstGeneration };
using Parts = std::vector<double>;

// Each round brings every part nearer to its best value; so many are far more than needed.
constexpr int kRounds = 20'000;

double sum_of_products(const Parts& one, const Parts& other) {
  return std::inner_product(one.begin(), one.end(), other.begin(), 0.0);
}

// The sum of the keys that `count` tokens from `begin` on see, each itself among them.
double keys_of(size_t begin, size_t count) {
  const auto tokens = static_cast<double>(count);
  return tokens * (static_cast<double>(begin) + (tokens + 1) / 2);
}

// A pass of `tokens` generated ones lies on the line through two that are known: a part of the way
// from the first of them to the second, or behind it.
struct Place {
  size_t first = 0;
  double part = 0;
};

Place place_of(std::span<const PassCosts::Generation> known, size_t tokens) {
  size_t first = 0;
  while (first + 2 < known.size() && known[first + 1].tokens < tokens) ++first;
  const auto begin = static_cast<double>(known[first].tokens);
  const auto end = static_cast<double>(known[first + 1].tokens);
  return {.first = first, .part = (static_cast<double>(tokens) - begin) / (end - begin)};
}

double generation_seconds(const PassCosts& costs, size_t tokens) {
  const auto [first, part] = place_of(costs.generation, tokens);
  const double begin = costs.generation[first].seconds;
  const double end = costs.generation[first + 1].seconds;
  // Behind the last that is known no pass is faster than that one: figures are noisy.
  return std::max(begin + part * (end - begin), part > 1 ? end : 0.0);
}

Parts parts_of(const PassCosts& costs) {
  Parts parts = {costs.prompts, costs.prompt_token, costs.prompt_key, costs.generated_key};
  for (const PassCosts::Generation& each : costs.generation) parts.push_back(each.seconds);
  return parts;
}

// The parts of all passes of a measurement, and the time that they took.
Parts amounts(const BenchRow& row, std::span<const PassCosts::Generation> known,
              size_t batch_tokens) {
  Parts amounts(kFirstGeneration + known.size());
  const auto sequences = static_cast<double>(row.sequences);
  double passes = 0;
  if (row.prompt_tokens > 0) {
    passes = std::ceil(static_cast<double>(row.prompt_tokens) * sequences /
                       static_cast<double>(batch_tokens));
    amounts[kPrompts] = passes;
    amounts[kPromptToken] = static_cast<double>(row.prompt_tokens) * sequences;
    amounts[kPromptKey] = sequences * keys_of(row.depth_tokens, row.prompt_tokens);
  } else {
    passes = static_cast<double>(row.generated_tokens);
    amounts[kGeneratedKey] = sequences * keys_of(row.depth_tokens, row.generated_tokens);
  }
  const auto [first, part] = place_of(known, row.prompt_tokens > 0 ? 0 : row.sequences);
  amounts[kFirstGeneration + first] = passes * (1 - part);
  amounts[kFirstGeneration + first + 1] = passes * part;
  return amounts;
}

double seconds_of(const BenchRow& row) {
  return static_cast<double>((row.prompt_tokens + row.generated_tokens) * row.sequences) /
         row.tokens_per_second;
}

// The numbers of sequences that generated side by side, without what their passes take.
Result<std::vector<PassCosts::Generation>> check_rows(std::span<const BenchRow> rows) {
  std::set<size_t> prompts;
  std::set<size_t> side_by_side;
  for (const BenchRow& row : rows) {
    if (row.prompt_tokens > 0) prompts.insert(row.prompt_tokens);
    if (row.generated_tokens > 0) side_by_side.insert(row.sequences);
  }
  if (prompts.size() < 2 || side_by_side.size() < 2) {
    return invalid_input(
        "has {} lengths of prompts and generation of {} numbers of sequences, but two of each are "
        "needed to tell what a pass costs by its tokens; measure with `lockstepd bench --json "
        "--prompt 64,512 --generate 32 --sequences 1,2,4,8 --depth 0,2048`",
        prompts.size(), side_by_side.size());
  }
  std::vector<PassCosts::Generation> known;
  for (const size_t sequences : side_by_side) known.push_back({.tokens = sequences});
  return known;
}

bool has_depths(std::span<const BenchRow> rows, size_t BenchRow::*tokens) {
  std::set<size_t> depths;
  for (const BenchRow& row : rows) {
    if (row.*tokens > 0) depths.insert(row.depth_tokens);
  }
  return depths.size() >= 2;
}

}  // namespace

double pass_seconds(const PassCosts& costs, const Schedule& schedule) {
  double sum = 0;
  size_t generated = 0;
  bool has_prompts = false;
  for (const Chunk& chunk : schedule.chunks) {
    const double keys = keys_of(chunk.begin, chunk.count);
    if (chunk.generated) {
      generated += chunk.count;
      sum += costs.generated_key * keys;
    } else {
      has_prompts = true;
      sum += costs.prompt_token * static_cast<double>(chunk.count) + costs.prompt_key * keys;
    }
  }
  return sum + generation_seconds(costs, generated) + (has_prompts ? costs.prompts : 0);
}

Result<PassCosts> fit_pass_costs(std::span<const BenchRow> rows, size_t batch_tokens) {
  auto known = check_rows(rows);
  if (!known) return std::unexpected(known.error());
  const size_t part_count = kFirstGeneration + known->size();
  std::vector<Parts> products(part_count, Parts(part_count));
  Parts wanted(part_count);
  const bool has_prompt_depths = has_depths(rows, &BenchRow::prompt_tokens);
  const bool has_generation_depths = has_depths(rows, &BenchRow::generated_tokens);
  for (const BenchRow& row : rows) {
    Parts relative = amounts(row, *known, batch_tokens);
    if (!has_prompt_depths) relative[kPromptKey] = 0;
    if (!has_generation_depths) relative[kGeneratedKey] = 0;
    for (double& amount : relative) amount /= seconds_of(row);
    for (size_t part = 0; part < part_count; ++part) {
      wanted[part] += relative[part];
      for (size_t other = 0; other < part_count; ++other) {
        products[part][other] += relative[part] * relative[other];
      }
    }
  }
  Parts parts(part_count);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t part = 0; part < part_count; ++part) {
      if (products[part][part] == 0) continue;
      const double others =
          sum_of_products(products[part], parts) - products[part][part] * parts[part];
      parts[part] = std::max((wanted[part] - others) / products[part][part], 0.0);
    }
  }
  for (size_t at = 0; at < known->size(); ++at) (*known)[at].seconds = parts[kFirstGeneration + at];
  return PassCosts{.generation = *std::move(known),
                   .generated_key = parts[kGeneratedKey],
                   .prompts = parts[kPrompts],
                   .prompt_token = parts[kPromptToken],
                   .prompt_key = parts[kPromptKey]};
}

double worst_deviation(const PassCosts& costs, std::span<const BenchRow> rows,
                       size_t batch_tokens) {
  double worst = 0;
  for (const BenchRow& row : rows) {
    const Parts parts = amounts(row, costs.generation, batch_tokens);
    const double expected = sum_of_products(parts, parts_of(costs));
    worst = std::max(worst, std::abs(expected / seconds_of(row) - 1));
  }
  return worst;
}

}  // namespace lockstep
