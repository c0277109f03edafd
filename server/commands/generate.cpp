// lockstepd generate: one prompt, its continuation on standard output as it comes.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include "server/api/common/outputs.h"
#include "server/api/common/random.h"
#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/daemon/signals.h"

namespace lockstep {
namespace {

struct GenerateOptions {
  std::string prompt;
  uint32_t max_tokens = 128;
  double temperature = 1;
  uint32_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  std::optional<int64_t> seed;
  bool ignore_eos = false;
};

void add_options(CLI::App& app, GenerateOptions& options) {
  app.add_option("--prompt", options.prompt, "The text to continue")->required();
  app.add_option("--max-tokens", options.max_tokens, "Tokens to generate at most [128]")
      ->check(CLI::Range(1U, 16777216U));
  app.add_option("--temperature", options.temperature, "0 always takes the most likely token [1]")
      ->check(CLI::Range(0.0, 2.0));
  app.add_option("--top-k", options.top_k, "Choose among so many tokens; 0 for all [0]")
      ->check(CLI::Range(0U, std::numeric_limits<uint32_t>::max()));
  app.add_option("--top-p", options.top_p,
                 "Choose among the most likely tokens of this probability together [1]")
      ->check(CLI::Range(std::numeric_limits<float>::min(), 1.0F));
  app.add_option("--min-p", options.min_p,
                 "Choose among tokens of at least this probability relative to the likeliest [0]")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.seed, "The same seed gives the same text [a random one]");
  app.add_flag("--ignore-eos", options.ignore_eos, "Go on after the model's own end");
}

Result<Request> make_request(const Engine& engine, const GenerateOptions& options) {
  Request request;
  request.id = "generate";
  request.prompt =
      engine.tokenizer().encode(options.prompt, {.add_special = true, .parse_special = true});
  if (request.prompt.empty() && engine.tokenizer().bos()) {
    request.prompt.push_back(*engine.tokenizer().bos());
  }
  if (request.prompt.empty()) {
    return invalid_input("--prompt: \"\" is no prompt for this model: it has no beginning token");
  }
  const uint64_t context = engine.model().context_tokens;
  if (request.prompt.size() >= context) {
    return invalid_input("--prompt: {} tokens leave no space in a context of {}; raise --context",
                         request.prompt.size(), context);
  }
  request.max_tokens = static_cast<uint32_t>(
      std::min<uint64_t>(options.max_tokens, context - request.prompt.size()));
  request.ignore_eos = options.ignore_eos;
  request.sampling.temperature = static_cast<float>(options.temperature);
  request.sampling.top_k = options.top_k;
  request.sampling.top_p = static_cast<float>(options.top_p);
  request.sampling.min_p = static_cast<float>(options.min_p);
  request.sampling.seed = options.seed ? static_cast<uint64_t>(*options.seed) : random_seed();
  return request;
}

// Prints the text until the request ends; its error if it failed.
Result<void> print(OutputQueue& queue) {
  while (true) {
    for (const auto& event : queue.wait(std::chrono::hours(1))) {
      std::cout << event.output.text << std::flush;
      if (!event.output.finish) continue;
      std::cout << '\n' << std::flush;
      if (*event.output.finish == FinishReason::kError) {
        return machine_refused("the generation failed: {}", event.output.error);
      }
      if (*event.output.finish == FinishReason::kInvalidRequest) {
        return invalid_input("the generation cannot go on: {}", event.output.error);
      }
      return {};
    }
  }
}

Result<void> generate(Engine& engine, const GenerateOptions& options) {
  auto request = make_request(engine, options);
  if (!request) return std::unexpected(request.error());
  // Shared with the engine's thread, which may say the last word.
  const auto queue = std::make_shared<OutputQueue>();
  request->on_output = [queue](Output&& output) { queue->push(0, std::move(output)); };
  constexpr int64_t kNotYet = -1;
  std::atomic<int64_t> running = kNotYet;
  const SignalWatch watch({.on_stop =
                               [&] {
                                 const int64_t id = running;
                                 if (id == kNotYet)
                                   std::_Exit(0);  // in the middle of the load: nothing to end
                                 engine.cancel(static_cast<RequestId>(id));
                               },
                           .on_stop_again = [] { std::_Exit(0); }});
  if (const auto loaded = engine.load(); !loaded) return loaded;
  const auto id = engine.submit(std::move(*request));
  if (!id) return std::unexpected(id.error());
  running = static_cast<int64_t>(*id);
  return print(*queue);
}

// Other hosts may be long in coming.
Result<std::unique_ptr<Engine>> open_until_interrupted(const Options& options) {
  const SignalWatch watch(
      {.on_stop = [] { std::_Exit(0); }, .on_stop_again = [] { std::_Exit(0); }});
  return open_engine(options);
}

}  // namespace

int run_generate(const std::vector<std::string>& arguments) {
  CommandLine line("generate", "Continues a prompt; the text goes to standard output as it comes.",
                   kGenerate);
  GenerateOptions generate_options;
  add_options(line.app(), generate_options);
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  Options options = to_quiet_options(*values);
  options.engine.sequence_count = 1;
  start_log(options);
  block_signals(Hangup::kEnds);
  auto engine = open_until_interrupted(options);
  if (!engine) return report(engine.error());
  const auto done = generate(**engine, generate_options);
  return done ? 0 : report(done.error());
}

}  // namespace lockstep
