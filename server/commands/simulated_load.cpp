#include "server/commands/simulated_load.h"

#include <algorithm>
#include <utility>

#include "server/commands/command_line.h"

namespace lockstep {
namespace {

constexpr size_t kPageTokens = 64;
// More in a made load would take several GiB.
constexpr double kRequestsMost = 5e6;

struct BenchFile {
  std::vector<BenchRow> rows;
  size_t batch_tokens = 0;
};

Result<BenchFile> parse_bench(std::string_view text) {
  const auto body = parse_json(text);
  if (!body) {
    return invalid_input("is not the output of `lockstepd bench --json`: {}", body.error().message);
  }
  try {
    BenchFile file{.rows = {}, .batch_tokens = body->at("batch_tokens").get<size_t>()};
    for (const Json& row : body->at("results")) {
      file.rows.push_back({.prompt_tokens = row.at("prompt_tokens").get<size_t>(),
                           .generated_tokens = row.at("generated_tokens").get<size_t>(),
                           .depth_tokens = row.at("depth_tokens").get<size_t>(),
                           .sequences = row.at("sequences").get<size_t>(),
                           .tokens_per_second = row.at("tokens_per_second").get<double>()});
    }
    const bool usable = std::ranges::all_of(file.rows, [](const BenchRow& row) {
      return (row.prompt_tokens > 0) != (row.generated_tokens > 0) && row.sequences > 0 &&
             row.tokens_per_second > 0;
    });
    if (usable && file.batch_tokens > 0) return file;
  } catch (const Json::exception& exception) {
    return invalid_input("is not the output of `lockstepd bench --json`: {}", exception.what());
  }
  return invalid_input("is not the output of `lockstepd bench --json`: a figure in it is 0");
}

}  // namespace

Result<CostsFile> read_costs(const std::filesystem::path& path) {
  const auto text = read_file(path, "--costs");
  if (!text) return std::unexpected(text.error());
  const auto bench = parse_bench(*text);
  if (!bench) return invalid_input("--costs: {} {}", path.string(), bench.error().message);
  auto costs = fit_pass_costs(bench->rows, bench->batch_tokens);
  if (!costs) return invalid_input("--costs: {} {}", path.string(), costs.error().message);
  const double deviation = worst_deviation(*costs, bench->rows, bench->batch_tokens);
  return CostsFile{std::move(*costs), bench->batch_tokens, deviation};
}

Result<std::vector<SimulatedRequest>> make_load(ArrivalProcess process, const std::string& prompt,
                                                const std::string& answer) {
  const auto prompt_range = parse_length_range(prompt, "--prompt");
  if (!prompt_range) return std::unexpected(prompt_range.error());
  const auto answer_range = parse_length_range(answer, "--answer");
  if (!answer_range) return std::unexpected(answer_range.error());
  const double requests = process.requests_per_second * process.seconds;
  if (requests > kRequestsMost) {
    return invalid_input(
        "{:.0f} requests in {} seconds are too many to simulate, at most {:.0f}: lower --seconds",
        requests, process.seconds, kRequestsMost);
  }
  process.prompt = *prompt_range;
  process.answer = *answer_range;
  return make_arrivals(process);
}

ReplicaOptions replica_options(const EngineOptions& engine, size_t batch_tokens,
                               size_t context_tokens) {
  const size_t context_pages = (context_tokens + kPageTokens - 1) / kPageTokens;
  return {.sequences = engine.sequence_count,
          .batch_tokens = engine.batch_tokens > 0 ? engine.batch_tokens : batch_tokens,
          .kv_pages = engine.kv_pages > 0 ? engine.kv_pages : engine.sequence_count * context_pages,
          .waiting_requests = engine.waiting_requests,
          .waiting_prompt_tokens = engine.waiting_prompt_tokens,
          .first_token_target = engine.first_token_target_seconds,
          .token_target = engine.token_target_seconds};
}

Result<size_t> fewest_replicas(const FleetOptions& fleet, std::span<const SimulatedRequest> load,
                               double good_part) {
  const size_t fewest =
      replicas_needed(fleet, load, good_part, std::min(load.size(), kReplicasMost));
  if (fewest > 0) return fewest;
  return invalid_input(
      "even with one for each request fewer than {:.1f} % of them are good: raise "
      "--first-limit or --token-limit",
      good_part * 100);
}

}  // namespace lockstep
