// lockstepd bench: tokens per second as llama-bench measures and words them, so that both can be
// run side by side. "pp512": a prompt of 512 tokens is computed; "tg64": 64 tokens are generated
// one by one; "@ d4096": after 4096 that are in the cache already; "x8": in 8 sequences side by
// side, whose tokens are counted together. Mean ± standard deviation over the repeats, after one
// warm-up. Beside them what the passes had to read and to multiply (see MeasuredWork) per second,
// and the share of what the machine can do at most, measured before: its memory read by all
// workers, the fastest arithmetic that the weights' format allows by them all.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/options/version.h"

namespace lockstep {
namespace {

constexpr uint32_t kTokensMax = 16777216;
constexpr uint32_t kSequencesMax = 1024;

struct BenchOptions {
  std::string prompt = "512";
  std::string generate = "128";
  std::string sequences = "1";
  std::string depth = "0";
  bool zero_depth = false;
  uint32_t repeat = 5;
  bool no_limits = false;
  bool json = false;
};

// The fastest that the workers can do at most; 0: not measured.
struct Limits {
  double bytes = 0;  // per second
  double operations = 0;
  std::string operation;  // the fastest kind
};

struct BenchResult {
  std::string test;
  MeasurementCase measured;
  std::vector<double> samples;  // tokens per second
  double mean = 0;
  double deviation = 0;
  double bytes = 0;  // read per second, over all repeats
  double operations = 0;
  double bytes_per_token = 0;
  double operations_per_token = 0;
  size_t shortened_passes = 0;  // of all repeats
};

std::string test_name(const MeasurementCase& measured) {
  std::string name = measured.prompt_tokens > 0 ? fmt::format("pp{}", measured.prompt_tokens)
                                                : fmt::format("tg{}", measured.generated_tokens);
  if (measured.depth_tokens > 0) name += fmt::format(" @ d{}", measured.depth_tokens);
  if (measured.sequences > 1) name += fmt::format(" x{}", measured.sequences);
  return name;
}

Result<std::vector<MeasurementCase>> plan_cases(const BenchOptions& options) {
  const auto prompts = parse_counts(options.prompt, "--prompt", kTokensMax);
  if (!prompts) return std::unexpected(prompts.error());
  const auto generated = parse_counts(options.generate, "--generate", kTokensMax);
  if (!generated) return std::unexpected(generated.error());
  const auto depths = parse_counts(options.depth, "--depth", kTokensMax);
  if (!depths) return std::unexpected(depths.error());
  const auto sequences = parse_counts(options.sequences, "--sequences", kSequencesMax);
  if (!sequences) return std::unexpected(sequences.error());
  if (std::ranges::find(*sequences, 0U) != sequences->end()) {
    return invalid_input("--sequences: must be from 1 to {}, not 0", kSequencesMax);
  }
  std::vector<MeasurementCase> cases;
  const uint32_t repeats = options.repeat + 1;  // the first warms up
  for (const uint32_t count : *sequences) {
    for (const uint32_t depth : *depths) {
      for (const uint32_t tokens : *prompts) {
        if (tokens > 0) cases.push_back({depth, tokens, 0, count, repeats});
      }
      for (const uint32_t tokens : *generated) {
        if (tokens > 0) cases.push_back({depth, 0, tokens, count, repeats});
      }
    }
  }
  for (MeasurementCase& measured : cases) measured.zero_depth = options.zero_depth;
  if (cases.empty()) return invalid_input("nothing to measure: --prompt and --generate are both 0");
  return cases;
}

// A context and a batch that hold every case, unless the user has set the context.
void fit(const std::vector<MeasurementCase>& cases, EngineOptions& options) {
  uint32_t tokens = 0;
  uint32_t sequences = 1;
  for (const MeasurementCase& measured : cases) {
    tokens = std::max(tokens,
                      measured.depth_tokens + measured.prompt_tokens + measured.generated_tokens);
    sequences = std::max(sequences, measured.sequences);
  }
  if (options.context_tokens == 0) options.context_tokens = tokens;
  options.sequence_count = sequences;
  options.fixed_lengths = true;
}

void summarize(BenchResult& result) {
  const auto count = static_cast<double>(result.samples.size());
  for (const double sample : result.samples) result.mean += sample / count;
  if (result.samples.size() < 2) return;
  double squares = 0;
  for (const double sample : result.samples) {
    squares += (sample - result.mean) * (sample - result.mean);
  }
  result.deviation = std::sqrt(squares / (count - 1));
}

Result<BenchResult> measure(Engine& engine, const MeasurementCase& measured) {
  const auto repeats = engine.measure(measured);
  if (!repeats) return std::unexpected(repeats.error());
  BenchResult result{.test = test_name(measured), .measured = measured, .samples = {}};
  const double tokens =
      static_cast<double>(measured.prompt_tokens + measured.generated_tokens) * measured.sequences;
  double seconds = 0;
  for (const Measurement& repeat : std::span(*repeats).subspan(1)) {
    const double own = repeat.prompt.seconds + repeat.generate.seconds;
    result.samples.push_back(tokens / own);
    seconds += own;
    result.bytes += repeat.prompt.bytes + repeat.generate.bytes;
    result.operations += repeat.prompt.operations + repeat.generate.operations;
    result.shortened_passes += repeat.prompt.shortened_passes;
  }
  const double all_tokens = tokens * static_cast<double>(result.samples.size());
  result.bytes_per_token = result.bytes / all_tokens;
  result.operations_per_token = result.operations / all_tokens;
  result.bytes /= seconds;
  result.operations /= seconds;
  summarize(result);
  return result;
}

// Products with weights of 8 bits and less may be those of integers; others lose nothing.
bool may_use(const MachineArithmetic& arithmetic, const ModelInfo& info) {
  return info.format.starts_with('Q') || !arithmetic.operation.starts_with("int8");
}

Result<Limits> measure_limits(Engine& engine, const BenchOptions& options) {
  Limits limits;
  if (options.no_limits) return limits;
  const auto measured = engine.measure_limits();
  if (!measured) return std::unexpected(measured.error());
  limits.bytes = measured->read_bytes_per_second;
  for (const MachineArithmetic& arithmetic : measured->arithmetic) {
    if (!may_use(arithmetic, engine.model())) continue;
    if (arithmetic.operations_per_second <= limits.operations) continue;
    limits.operations = arithmetic.operations_per_second;
    limits.operation = arithmetic.operation;
  }
  return limits;
}

Json share(double value, double limit) {
  return limit > 0 ? Json(value / limit) : Json(nullptr);
}

Json to_json(const BenchResult& result, const Limits& limits) {
  return {{"test", result.test},
          {"tokens_per_second", result.mean},
          {"stddev", result.deviation},
          {"samples", result.samples},
          {"bytes_per_second", result.bytes},
          {"operations_per_second", result.operations},
          {"bytes_per_token", result.bytes_per_token},
          {"operations_per_token", result.operations_per_token},
          {"share_of_read_limit", share(result.bytes, limits.bytes)},
          {"share_of_operations_limit", share(result.operations, limits.operations)},
          {"shortened_passes", result.shortened_passes},
          {"prompt_tokens", result.measured.prompt_tokens},
          {"generated_tokens", result.measured.generated_tokens},
          {"depth_tokens", result.measured.depth_tokens},
          {"zero_depth", result.measured.zero_depth},
          {"sequences", result.measured.sequences}};
}

void print_json(const std::vector<BenchResult>& results, const ModelInfo& info,
                const Limits& limits, const EngineOptions& options, const BenchOptions& bench) {
  Json body = {{"results", Json::array()},
               {"version", kVersion},
               {"model", info.name},
               {"file", options.model.string()},
               {"architecture", info.architecture},
               {"format", info.format},
               {"size_bytes", info.file_bytes},
               {"parameters", info.parameter_count},
               {"isa", info.instruction_set},
               {"arithmetic", info.arithmetic},
               {"kv_format", info.kv_format},
               {"ranks", info.rank_count},
               {"workers", info.worker_count},
               {"strategy", info.strategy},
               {"batch_tokens", info.batch_tokens},
               {"repeat", bench.repeat}};
  if (limits.bytes > 0) {
    body["limits"] = {{"read_bytes_per_second", limits.bytes},
                      {"operations_per_second", limits.operations},
                      {"operation", limits.operation}};
  }
  for (const BenchResult& result : results) body["results"].push_back(to_json(result, limits));
  std::cout << to_indented_text(body) << '\n';
}

void print_heading() {
  std::cout
      << fmt::format(
             "| {:<30} | {:>10} | {:>10} | {:<10} | {:>7} | {:>20} | {:>20} | {:>14} | {:>14} "
             "|\n",
             "model", "size", "params", "isa", "threads", "test", "t/s", "GB/s", "GFLOP/s")
      << fmt::format(
             "| {:-<30} | {:->9}: | {:->9}: | {:-<10} | {:->6}: | {:->19}: | {:->19}: | "
             "{:->13}: | {:->13}: |\n",
             "", "", "", "", "", "", "", "", "");
}

// Per second, and the share of what is possible.
std::string rate_text(double value, double limit) {
  const std::string rate = fmt::format("{:.1f}", value / 1e9);
  return limit > 0 ? fmt::format("{} ({:.0f} %)", rate, 100 * value / limit) : rate;
}

void print_row(const BenchResult& result, const ModelInfo& info, const Limits& limits) {
  const std::string size =
      fmt::format("{:.2f} MiB", static_cast<double>(info.file_bytes) / 1048576);
  const std::string parameters =
      fmt::format("{:.2f} M", static_cast<double>(info.parameter_count) / 1e6);
  const std::string model = fmt::format("{} {}", info.architecture, info.format);
  const std::string speed = fmt::format("{:.2f} ± {:.2f}", result.mean, result.deviation);
  std::cout
      << fmt::format(
             "| {:<30} | {:>10} | {:>10} | {:<10} | {:>7} | {:>20} | {:>20} | {:>14} | {:>14} "
             "|\n",
             model, size, parameters, info.instruction_set, info.worker_count, result.test, speed,
             rate_text(result.bytes, limits.bytes), rate_text(result.operations, limits.operations))
      << std::flush;
}

// Below the table, of those that were measured otherwise than asked for.
void print_shortened(const std::vector<BenchResult>& results) {
  for (const BenchResult& result : results) {
    if (result.shortened_passes == 0) continue;
    std::cout << fmt::format(
        "{}: {} passes were smaller than --batch-tokens, so that none came near the GPUs' "
        "deadline\n",
        result.test, result.shortened_passes);
  }
}

Result<void> bench(Engine& engine, const std::vector<MeasurementCase>& cases,
                   const EngineOptions& options, const BenchOptions& bench_options) {
  if (const auto loaded = engine.load(); !loaded) return loaded;
  const auto limits = measure_limits(engine, bench_options);
  if (!limits) return std::unexpected(limits.error());
  std::vector<BenchResult> results;
  if (!bench_options.json) print_heading();
  for (const MeasurementCase& measured : cases) {
    auto result = measure(engine, measured);
    if (!result) return std::unexpected(result.error());
    if (!bench_options.json) print_row(*result, engine.model(), *limits);
    results.push_back(std::move(*result));
  }
  if (bench_options.json) {
    print_json(results, engine.model(), *limits, options, bench_options);
  } else {
    print_shortened(results);
  }
  return {};
}

}  // namespace

int run_bench(const std::vector<std::string>& arguments) {
  CommandLine line("bench", "Measures tokens per second, in llama-bench's words.", kBench);
  BenchOptions bench_options;
  CLI::App& app = line.app();
  app.add_option("--prompt", bench_options.prompt, "Prompt tokens, one test each; 0 for none [512]")
      ->type_name("N,...");
  app.add_option("--generate", bench_options.generate,
                 "Tokens to generate, one test each; 0 for none [128]")
      ->type_name("N,...");
  app.add_option("--depth", bench_options.depth,
                 "Tokens that are in the cache already, one test each [0]")
      ->type_name("N,...");
  app.add_flag("--zero-depth", bench_options.zero_depth,
               "Do not compute the tokens of --depth: zeros are their keys and values, which take "
               "as long to read");
  app.add_option("--sequences", bench_options.sequences, "Sequences side by side [1]")
      ->type_name("N,...");
  app.add_option("--repeat", bench_options.repeat, "Measurements of each test [5]")
      ->check(CLI::Range(1U, 10000U));
  app.add_flag("--no-limits", bench_options.no_limits,
               "Leave out what the machine can do at most, which takes about a second to measure");
  app.add_flag("--json", bench_options.json, "As JSON");
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  Options options = to_quiet_options(*values);
  start_log(options);
  const auto cases = plan_cases(bench_options);
  if (!cases) return report(cases.error());
  fit(*cases, options.engine);
  auto engine = open_engine(options);
  if (!engine) return report(engine.error());
  const auto done = bench(**engine, *cases, options.engine, bench_options);
  return done ? 0 : report(done.error());
}

}  // namespace lockstep
