// lockstepd evaluate: how well a model predicts a text (perplexity), and how far its predictions
// are from those of the model it was made of. Texts are cut and scored as llama-perplexity does it.
#include <algorithm>
#include <chrono>
#include <iostream>

#include "engine/base/log.h"
#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/options/version.h"

namespace lockstep {
namespace {

struct EvaluateOptions {
  std::filesystem::path text;
  std::filesystem::path reference;
  std::string reference_kv_format;
  uint32_t context = 512;
  uint32_t chunks = 0;
  uint32_t sequences = 8;
  bool generated = false;
  bool json = false;
};

void add_options(CLI::App& app, EvaluateOptions& options) {
  app.add_option("--text", options.text, "The text that is to be predicted, plain")
      ->required()
      ->type_name("FILE");
  app.add_option("--reference", options.reference,
                 "The F32 or F16 file that the model was made of: adds the KL divergence of the "
                 "model from it")
      ->type_name("FILE");
  app.add_option("--reference-kv-format", options.reference_kv_format,
                 "The reference's number format of keys and values; with the model itself as the "
                 "reference: what its own format costs [the model's]")
      ->check(CLI::IsMember({"f16", "bf16", "f32", "q8_0", "q4_h", "q4_0"}));
  app.add_option("--context", options.context,
                 "Tokens of a chunk; the second half of each is scored [512]")
      ->check(CLI::Range(16U, 16777216U));
  app.add_option("--chunks", options.chunks, "Chunks of the text at most; 0 for all [0]")
      ->check(CLI::Range(0U, 16777216U));
  app.add_flag("--generated", options.generated,
               "Compute the scored tokens as generated ones, one per pass, instead of as a prompt");
  app.add_option("--sequences", options.sequences, "Chunks side by side, with --generated [8]")
      ->check(CLI::Range(1U, 1024U));
  app.add_flag("--json", options.json, "As JSON");
}

// Capacity for one group of chunks, and logits for as many of a pass as will be scored.
EngineOptions engine_options(const EngineOptions& given, const EvaluateOptions& evaluate) {
  EngineOptions options = given;
  options.context_tokens = evaluate.context;
  options.sequence_count = evaluate.generated ? evaluate.sequences : 1;
  if (!evaluate.generated) options.logit_rows = evaluate.context / 2;
  return options;
}

std::string percent(const Estimate& share) {
  return fmt::format("{:.2f} ± {:.2f} %", share.mean * 100, share.error * 100);
}

void print_table(const Evaluation& found, const EvaluateOptions& options) {
  const auto row = [](std::string_view name, const std::string& value) {
    std::cout << fmt::format("{:<28} {}\n", name, value);
  };
  row("tokens", fmt::format("{} in {} chunks of {}, {} scored", found.text_tokens,
                            found.chunk_count, options.context, found.scored_tokens));
  row("perplexity", fmt::format("{:.5f} ± {:.5f}", found.perplexity.mean, found.perplexity.error));
  if (!found.comparison) return;
  const Evaluation::Comparison& than = *found.comparison;
  row("perplexity of the reference",
      fmt::format("{:.5f} ± {:.5f}", than.perplexity.mean, than.perplexity.error));
  row("ln of their ratio",
      fmt::format("{:.6f} ± {:.6f}", than.log_ratio.mean, than.log_ratio.error));
  row("KL divergence, nats",
      fmt::format("{:.6f} ± {:.6f} (half below {:.6f}, 90 % below {:.6f}, 99 % below {:.6f}, most "
                  "{:.6f})",
                  than.divergence.mean, than.divergence.error, than.divergence_median,
                  than.divergence_90, than.divergence_99, than.divergence_max));
  row("same token most likely", percent(than.top_agreement));
}

Json to_json(const Estimate& estimate) {
  return {{"mean", estimate.mean}, {"standard_error", estimate.error}};
}

Json to_json(const Evaluation::Comparison& than) {
  return {{"perplexity", to_json(than.perplexity)},
          {"log_perplexity_ratio", to_json(than.log_ratio)},
          {"kl_divergence",
           {{"mean", than.divergence.mean},
            {"standard_error", than.divergence.error},
            {"median", than.divergence_median},
            {"percentile_90", than.divergence_90},
            {"percentile_99", than.divergence_99},
            {"max", than.divergence_max}}},
          {"top_token_agreement", to_json(than.top_agreement)}};
}

void print_json(const Evaluation& found, const ModelInfo& info, const EvaluateOptions& options,
                const std::filesystem::path& model, double seconds) {
  Json body = {{"version", kVersion},
               {"file", model.string()},
               {"format", info.format},
               {"isa", info.instruction_set},
               {"arithmetic", info.arithmetic},
               {"kv_format", info.kv_format},
               {"text", options.text.string()},
               {"context_tokens", options.context},
               {"generated", options.generated},
               {"text_tokens", found.text_tokens},
               {"chunks", found.chunk_count},
               {"scored_tokens", found.scored_tokens},
               {"log_loss", to_json(found.log_loss)},
               {"perplexity", to_json(found.perplexity)},
               {"seconds", seconds}};
  if (found.comparison) {
    body["reference"] = {{"file", options.reference.string()}};
    if (!options.reference_kv_format.empty()) {
      body["reference"]["kv_format"] = options.reference_kv_format;
    }
    body["reference"].update(to_json(*found.comparison));
  }
  std::cout << to_indented_text(body) << '\n';
}

// Opens and checks everything, then loads it.
Result<void> run(const Options& options, const EvaluateOptions& evaluate_options) {
  if (auto given = check_model_given(options); !given) return given;
  const auto text = read_file(evaluate_options.text, "--text", "; give a file of plain text");
  if (!text) return std::unexpected(text.error());
  EngineOptions engine = engine_options(options.engine, evaluate_options);
  const auto model = Engine::open(engine);
  if (!model) return std::unexpected(model.error());
  Result<std::unique_ptr<Engine>> reference = nullptr;
  if (!evaluate_options.reference.empty()) {
    engine.model = evaluate_options.reference;
    if (!evaluate_options.reference_kv_format.empty()) {
      engine.kv_format = evaluate_options.reference_kv_format;
      engine.kv_key_format = engine.kv_value_format = "";
    }
    reference = Engine::open(engine);
    if (!reference) return std::unexpected(reference.error());
  }
  EvaluationOptions wanted;
  wanted.context_tokens = evaluate_options.context;
  wanted.chunk_count = evaluate_options.chunks;
  wanted.generated = evaluate_options.generated;
  wanted.side_by_side = evaluate_options.sequences;
  wanted.on_chunks = [](uint32_t done, uint32_t all) { spdlog::info("chunk {} of {}", done, all); };
  const auto tokens = (*model)->tokenizer().encode(*text, {.add_special = true});
  if (auto possible = check_evaluation(**model, reference->get(), tokens, wanted); !possible) {
    return possible;
  }
  for (Engine* each : {model->get(), reference->get()}) {
    if (each == nullptr) continue;
    if (auto loaded = each->load(); !loaded) return loaded;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto found = evaluate(**model, reference->get(), tokens, wanted);
  if (!found) return std::unexpected(found.error());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (evaluate_options.json) {
    print_json(*found, (*model)->model(), evaluate_options, options.engine.model, seconds);
  } else {
    print_table(*found, evaluate_options);
  }
  return {};
}

}  // namespace

int run_evaluate(const std::vector<std::string>& arguments) {
  CommandLine line("evaluate",
                   "Measures how well a model predicts a text, and how far its predictions are "
                   "from those of the model that it was made of.",
                   kEvaluate);
  EvaluateOptions evaluate_options;
  add_options(line.app(), evaluate_options);
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  const Options options = to_quiet_options(*values);
  start_log(options);
  const auto done = run(options, evaluate_options);
  return done ? 0 : report(done.error());
}

}  // namespace lockstep
