// lockstepd simulate: what clients of one daemon or of many behind a router would see under a load,
// by the scheduler that serves and by the costs of passes that `bench --json` has measured.
// Computes no model.
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <numeric>

#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/commands/simulated_load.h"
#include "server/options/version.h"

namespace lockstep {
namespace {

constexpr size_t kContextTokens = 4096;  // of a sequence, where --kv-pages is auto

struct SimulateOptions {
  std::filesystem::path costs;
  std::filesystem::path trace;
  ArrivalProcess arrivals;
  std::string prompt = "260";
  std::string answer = "48";
  std::string replicas = "1";
  double good_part = 0.99;
  FleetOptions fleet;
  bool json = false;
};

void add_load_options(CLI::App& app, SimulateOptions& options) {
  ArrivalProcess& made = options.arrivals;
  app.add_option("--costs", options.costs,
                 "What passes cost: the output of `lockstepd bench --json`, with two lengths of "
                 "prompts and two numbers of sequences (--prompt 64,512 --generate 32 --sequences "
                 "1,2,4,8 --depth 0,2048)")
      ->required()
      ->type_name("FILE");
  app.add_option("--trace", options.trace,
                 "The load: a JSON object per line with \"arrival\" (seconds), \"prompt\" and "
                 "\"answer\" (tokens) and, if wanted, \"tenant\", \"prefix\" with "
                 "\"prefix_tokens\" (shared by all with that prefix), \"conversation\" (shared by "
                 "its turns). Without it a load is made:")
      ->type_name("FILE");
  app.add_option("--rate", made.requests_per_second, "Requests per second, all together [1]")
      ->check(CLI::Range(1e-6, 1e6));
  app.add_option("--seconds", made.seconds, "For so long they come [60]")
      ->check(CLI::Range(1e-3, 1e6));
  app.add_option("--prompt", options.prompt, "Tokens of a prompt, or between two numbers [260]")
      ->type_name("N[-N]");
  app.add_option("--answer", options.answer, "Tokens of an answer, likewise [48]")
      ->type_name("N[-N]");
  app.add_option("--prefix-tokens", made.prefix_tokens, "Tokens of a prompt that are shared [0]");
  app.add_option("--prefixes", made.prefix_count, "Different shared prefixes [1]")
      ->check(CLI::Range(1U, 1000000U));
  app.add_option("--tenants", made.tenant_count, "Tenants that ask [1]")
      ->check(CLI::Range(1U, 1000000U));
  app.add_option("--seed", made.seed, "Of the load and of the router's draws [1]");
}

void add_fleet_options(CLI::App& app, SimulateOptions& options) {
  FleetOptions& fleet = options.fleet;
  app.add_option("--replicas", options.replicas,
                 "Daemons behind the router; auto: the fewest that suffice (--good) [1]")
      ->type_name("N|auto");
  std::vector<std::string> names(router_names().begin(), router_names().end());
  app.add_option("--router", options.fleet.router,
                 "Who gets a request: round-robin, least-waiting, prefix, which scores queues, "
                 "pages and known prefixes by the metrics of replicas, or prefix-active, which "
                 "counts what it has sent itself in place of queues, as deploy/kubernetes/gateway "
                 "does [prefix-active]")
      ->check(CLI::IsMember(names));
  app.add_option("--first-limit", fleet.first_token_limit,
                 "A good request's first token comes within so many seconds [2]")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--token-limit", fleet.token_limit,
                 "and its others within so many of one another, in the mean [0.5]")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--good", options.good_part,
                 "The part of the requests that are to be good, with --replicas auto [0.99]")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--skip", fleet.skipped_seconds,
                 "Requests of the first so many seconds are not counted [0]")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("--json", options.json, "As JSON");
}

Result<std::vector<SimulatedRequest>> load_of(SimulateOptions& options) {
  if (!options.trace.empty()) {
    const auto text = read_file(options.trace, "--trace");
    if (!text) return std::unexpected(text.error());
    auto requests = parse_trace(*text);
    if (requests) return requests;
    return invalid_input("--trace: {}: {}", options.trace.string(), requests.error().message);
  }
  auto requests = make_load(options.arrivals, options.prompt, options.answer);
  if (requests && requests->empty()) {
    return invalid_input(
        "no request comes at {} per second in {} seconds: raise --rate or "
        "--seconds",
        options.arrivals.requests_per_second, options.arrivals.seconds);
  }
  return requests;
}

Json times_json(const std::vector<double>& times) {
  return {{"p50", percentile(times, 0.5)},
          {"p90", percentile(times, 0.9)},
          {"p99", percentile(times, 0.99)}};
}

double found_part(const FleetReport& report) {
  if (report.prompt_tokens_asked == 0) return 0;
  return static_cast<double>(report.prompt_tokens_found) /
         static_cast<double>(report.prompt_tokens_asked);
}

double per_second(double amount, const FleetReport& report) {
  return report.seconds > 0 ? amount / report.seconds : 0;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void print_as_json(const SimulateOptions& options, const FleetReport& report, double deviation) {
  const FleetOptions& fleet = options.fleet;
  const PassCosts& costs = fleet.costs;
  Json generation = Json::array();
  for (const auto& [tokens, seconds] : costs.generation) {
    generation.push_back({{"tokens", tokens}, {"seconds", seconds}});
  }
  const Json body = {
      {"version", kVersion},
      {"replicas", fleet.replicas},
      {"router", options.fleet.router},
      {"costs",
       {{"generation", generation},
        {"generated_key_seconds", costs.generated_key},
        {"prompts_seconds", costs.prompts},
        {"prompt_token_seconds", costs.prompt_token},
        {"prompt_key_seconds", costs.prompt_key},
        {"worst_deviation", deviation}}},
      {"requests", report.requests},
      {"refused", report.refused},
      {"good", report.good},
      {"seconds", report.seconds},
      {"requests_per_second", per_second(static_cast<double>(report.requests), report)},
      {"good_per_second", per_second(static_cast<double>(report.good), report)},
      {"answer_tokens_per_second", per_second(report.answer_tokens, report)},
      {"first_token_seconds", times_json(report.first_tokens)},
      {"mean_gap_seconds", times_json(report.mean_gaps)},
      {"longest_gap_seconds", times_json(report.longest_gaps)},
      {"prefix_hit_part", found_part(report)},
      {"preemptions", report.preemptions},
      {"busy_part",
       {{"mean", mean(report.busy)},
        {"least", std::ranges::min(report.busy)},
        {"most", std::ranges::max(report.busy)}}}};
  std::cout << to_indented_text(body) << '\n';
}

void print_times(std::string_view name, const std::vector<double>& times) {
  std::cout << fmt::format("  {:<22} p50 {:>9.3f} s   p90 {:>9.3f} s   p99 {:>9.3f} s\n", name,
                           percentile(times, 0.5), percentile(times, 0.9), percentile(times, 0.99));
}

void print_report(const SimulateOptions& options, const FleetReport& report, double deviation) {
  const PassCosts& costs = options.fleet.costs;
  std::vector<std::string> passes;
  for (const auto& [tokens, seconds] : costs.generation) {
    passes.push_back(fmt::format("{} in {:.2f} ms", tokens, seconds * 1e3));
  }
  std::cout << fmt::format(
      "a pass generates {}, and takes {:.3f} ms for 1,000 keys that they see; a prompt in it takes "
      "{:.2f} ms, {:.3f} ms for each token and {:.3f} ms for 1,000 keys: within {:.0f} % of what "
      "was measured\n",
      fmt::join(passes, ", "), costs.generated_key * 1e6, costs.prompts * 1e3,
      costs.prompt_token * 1e3, costs.prompt_key * 1e6, deviation * 100);
  std::cout << fmt::format("{} {}, router {}\n", options.fleet.replicas,
                           options.fleet.replicas == 1 ? "replica" : "replicas",
                           options.fleet.router);
  std::cout << fmt::format(
      "  {} requests in {:.1f} s: {:.2f} per second, {:.1f} answered tokens per second\n",
      report.requests, report.seconds, per_second(static_cast<double>(report.requests), report),
      per_second(report.answer_tokens, report));
  std::cout << fmt::format("  {} refused, {} good ({:.1f} %)\n", report.refused, report.good,
                           report.good_part() * 100);
  print_times("first token", report.first_tokens);
  print_times("between tokens, mean", report.mean_gaps);
  print_times("longest between two", report.longest_gaps);
  std::cout << fmt::format(
      "  {:.1f} % of the prompts' tokens were found in the caches; {} sequences gave their pages "
      "up\n",
      found_part(report) * 100, report.preemptions);
  std::cout << fmt::format("  replicas computed {:.0f} % of the time ({:.0f} to {:.0f} %)\n",
                           mean(report.busy) * 100, std::ranges::min(report.busy) * 100,
                           std::ranges::max(report.busy) * 100);
}

// Sets the number of replicas that was asked for, or that suffices.
Result<void> choose_replicas(SimulateOptions& options, std::span<const SimulatedRequest> load) {
  if (options.replicas != "auto") {
    const auto counts = parse_counts(options.replicas, "--replicas", kReplicasMost);
    if (!counts) return std::unexpected(counts.error());
    if (counts->size() != 1 || counts->front() == 0) {
      return invalid_input("--replicas: must be one number from 1 to {} or auto, not {}",
                           kReplicasMost, options.replicas);
    }
    options.fleet.replicas = counts->front();
    return {};
  }
  const auto fewest = fewest_replicas(options.fleet, load, options.good_part);
  if (!fewest) {
    return invalid_input("--replicas: {}", fewest.error().message);
  }
  options.fleet.replicas = *fewest;
  return {};
}

Result<void> simulate(SimulateOptions& options, const EngineOptions& engine) {
  const auto file = read_costs(options.costs);
  if (!file) return std::unexpected(file.error());
  const auto load = load_of(options);
  if (!load) return std::unexpected(load.error());
  options.fleet.costs = file->costs;
  options.fleet.seed = options.arrivals.seed;
  options.fleet.replica = replica_options(engine, file->batch_tokens, kContextTokens);
  if (const auto chosen = choose_replicas(options, *load); !chosen) return chosen;
  const FleetReport report = simulate_fleet(options.fleet, *load);
  (options.json ? print_as_json : print_report)(options, report, file->deviation);
  return {};
}

}  // namespace

int run_simulate(const std::vector<std::string>& arguments) {
  CommandLine line("simulate",
                   "Shows what clients of one daemon or of many would see under a load, by the "
                   "scheduler that serves. Loads and computes no model.",
                   kSimulate);
  SimulateOptions simulated;
  add_load_options(line.app(), simulated);
  add_fleet_options(line.app(), simulated);
  line.app().footer(
      "--kv-pages auto: for as many sequences of 4096 tokens as run at once; --batch-tokens auto: "
      "as the costs were measured.");
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  const Options options = to_quiet_options(*values);
  start_log(options);
  const auto done = simulate(simulated, options.engine);
  return done ? 0 : report(done.error());
}

}  // namespace lockstep
