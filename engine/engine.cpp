#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/engine_counters.h"
#include "engine/engine_loop.h"
#include "engine/kernels/kernel_table.h"
#include "engine/machine/control_group.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/topology.h"
#include "engine/measurement.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model_description.h"
#include "engine/model/weight_loader.h"
#include "engine/model_info.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/rank.h"
#include "engine/text/chat_template.h"
#include "engine/text/gguf_tokenizer_data.h"

namespace lockstep {
namespace {

// Rows of logits of one pass: enough for every sequence, and for prompts whose logits are all
// wanted to advance at a fair rate; a row is a whole vocabulary wide.
constexpr size_t kLeastLogitRows = 32;

// The share of the memory left beside the weights that an automatic context may take.
constexpr uint64_t kKvShareDivisor = 2;

Result<KvFormat> parse_kv_format(const std::string& name) {
  if (name == "f32") return KvFormat::kF32;
  if (name == "f16") return KvFormat::kF16;
  if (name == "bf16") return KvFormat::kBf16;
  return invalid_input("KV format \"{}\" is not known; known are f16, bf16 and f32", name);
}

struct ContextSize {
  size_t tokens = 0;  // of one sequence at most
  size_t pages = 0;
};

// One worker per core, but no more than the control groups give time for: workers that are held
// back in the middle of a step hold back all others.
size_t automatic_workers(size_t cores) {
  const auto quota = read_control_group_limits().cpus;
  if (!quota || *quota >= static_cast<double>(cores)) return cores;
  return std::max<size_t>(1, static_cast<size_t>(*quota));
}

// How many pages there will be and how long a sequence may get.
Result<ContextSize> size_context(const EngineOptions& options, const Model& model,
                                 const Plan& one_page) {
  const size_t page_bytes = one_page.kv.page_bytes();
  const auto pages_for = [](size_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; };
  if (options.context_tokens != 0) {
    if (options.context_tokens > model.trained_context_tokens) {
      spdlog::warn("the context of {} tokens is longer than the {} the model was trained for",
                   options.context_tokens, model.trained_context_tokens);
    }
    return ContextSize{options.context_tokens,
                       pages_for(options.context_tokens) * options.sequence_count};
  }
  const uint64_t taken = one_page.weight_bytes + one_page.scratch_bytes;
  const uint64_t available = available_memory_bytes();
  const uint64_t left = available > taken ? available - taken : 0;
  const size_t wanted = pages_for(model.trained_context_tokens) * options.sequence_count;
  const size_t pages = std::min<size_t>(wanted, left / kKvShareDivisor / page_bytes);
  if (pages == 0) {
    return machine_refused(
        "the weights take {} MiB of the {} MiB of memory that are available; nothing is left for a "
        "context. Use a smaller model or free memory",
        taken >> 20U, available >> 20U);
  }
  return ContextSize{std::min(model.trained_context_tokens, pages * kPageTokens), pages};
}

}  // namespace

// In order of construction: later members use earlier ones.
struct Engine::Parts {
  Parts(EngineOptions given, GgufFile model_file, Model built)
      : options(std::move(given)), file(std::move(model_file)), model(std::move(built)) {}

  Result<void> read_texts();
  Result<void> size();
  Result<void> load();

  EngineOptions options;
  GgufFile file;
  Model model;
  const KernelTable* kernels = nullptr;
  ModelInfo info;
  PlanOptions plan_options;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::string chat_template_error;  // why there is none

  EngineCounters counters;
  std::atomic<uint64_t> bytes_done = 0;
  std::atomic<uint64_t> bytes_total = 0;
  std::atomic<int64_t> load_started_ns = 0;  // steady clock; 0: not yet
  std::atomic<int64_t> load_ended_ns = 0;
  std::atomic<bool> ready = false;
  std::atomic<bool> draining = false;
  std::atomic<uint64_t> weight_bytes = 0;
  std::atomic<uint64_t> kv_bytes = 0;
  std::atomic<uint64_t> scratch_bytes = 0;

  std::unique_ptr<Rank> rank;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<EngineLoop> loop;
};

Result<void> Engine::Parts::read_texts() {
  auto data = read_tokenizer_data(file);
  if (!data) return std::unexpected(data.error());
  auto made = Tokenizer::make(std::move(*data));
  if (!made) return std::unexpected(made.error());
  tokenizer = std::move(*made);
  if (tokenizer->vocabulary_size() > model.vocabulary_size) {
    return invalid_input("tokenizer.ggml.tokens has {} entries, token_embd.weight only {} rows",
                         tokenizer->vocabulary_size(), model.vocabulary_size);
  }
  const auto source = file.text("tokenizer.chat_template");
  if (!source) return std::unexpected(source.error());
  if (!source->has_value()) {
    chat_template_error = "the model has no chat template (tokenizer.chat_template)";
    return {};
  }
  auto compiled = ChatTemplate::compile(**source);
  if (compiled) {
    chat_template = std::move(*compiled);
  } else {
    chat_template_error = "the model's chat template cannot be used: " + compiled.error().message;
    spdlog::warn("{}; chat completions will be refused", chat_template_error);
  }
  return {};
}

Result<void> Engine::Parts::size() {
  const auto kv_format = parse_kv_format(options.kv_format);
  if (!kv_format) return std::unexpected(kv_format.error());
  if (options.sequence_count == 0 || options.sequence_count > options.batch_tokens) {
    return invalid_input("sequences is {}; it must be from 1 to the {} tokens of a batch",
                         options.sequence_count, options.batch_tokens);
  }
  plan_options.batch_tokens = options.batch_tokens;
  plan_options.logit_rows = std::max<size_t>(kLeastLogitRows, options.sequence_count);
  plan_options.kv_format = *kv_format;
  plan_options.kv_pages = 1;
  const auto context = size_context(options, model, make_plan(model.graph, plan_options));
  if (!context) return std::unexpected(context.error());
  plan_options.kv_pages = context->pages;
  info.context_tokens = static_cast<uint32_t>(context->tokens);
  return {};
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  auto kernels = choose_kernel_table(options.instruction_set);
  if (!kernels) return std::unexpected(kernels.error());
  auto file = GgufFile::open(options.model);
  if (!file) return std::unexpected(file.error());
  // Some messages name the file themselves.
  auto with_file = [&](const Error& error) {
    const std::string prefix = options.model.string() + ": ";
    const bool named = error.message.starts_with(prefix);
    return std::unexpected(Error{error.kind, (named ? "" : prefix) + error.message});
  };
  auto model = build_model(*file);
  if (!model) return with_file(model.error());
  auto parts = std::make_unique<Parts>(options, std::move(*file), std::move(*model));
  parts->kernels = *kernels;
  if (auto read = parts->read_texts(); !read) return with_file(read.error());
  parts->info = describe_model(parts->file, parts->model, options.model, options.kv_format);
  parts->info.instruction_set = (*kernels)->name;
  if (auto sized = parts->size(); !sized) return std::unexpected(sized.error());
  return std::unique_ptr<Engine>(new Engine(std::move(parts)));
}

Engine::Engine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Engine::~Engine() = default;

Result<void> Engine::Parts::load() {
  std::vector<int> cpus = one_cpu_per_core(read_topology());
  const size_t cores = cpus.size();
  const size_t wanted = options.worker_count == 0 ? automatic_workers(cores) : options.worker_count;
  // More workers than cores: they share, so nobody is pinned.
  if (wanted > cores) cpus.assign(wanted, -1);
  cpus.resize(wanted);
  auto made = Rank::make(model.graph, plan_options, cpus);
  if (!made) return std::unexpected(made.error());
  rank = std::move(*made);
  const Plan& plan = rank->plan();
  weight_bytes = plan.weight_bytes;
  scratch_bytes = plan.scratch_bytes;
  kv_bytes = plan.kv.size_bytes();
  const LoadTarget target{plan, rank->workers()};
  bytes_total = bytes_to_load(file, model.graph, {&target, 1});
  if (auto loaded = load_weights(file, model.graph, {&target, 1}, bytes_done); !loaded) {
    return std::unexpected(loaded.error());
  }
  executor = std::make_unique<Executor>(*rank, *kernels);
  SchedulerLimits limits;
  limits.page_tokens = kPageTokens;
  limits.page_count = plan_options.kv_pages;
  limits.sequence_count = options.sequence_count;
  limits.batch_tokens = options.batch_tokens;
  limits.logit_rows = plan_options.logit_rows;
  loop = std::make_unique<EngineLoop>(*executor, limits, options.waiting_requests, *tokenizer,
                                      model.vocabulary_size, counters);
  return {};
}

Result<void> Engine::load() {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  parts_->load_started_ns = now();
  auto loaded = parts_->load();
  parts_->load_ended_ns = now();
  parts_->ready = loaded.has_value();
  return loaded;
}

const ModelInfo& Engine::model() const {
  return parts_->info;
}

EngineStatistics Engine::statistics() const {
  EngineStatistics statistics;
  parts_->counters.fill(statistics);
  statistics.load.bytes_done = parts_->bytes_done;
  statistics.load.bytes_total = parts_->bytes_total;
  statistics.load.ready = parts_->ready;
  const int64_t start = parts_->load_started_ns;
  if (start != 0) {
    const int64_t end = parts_->load_ended_ns;
    const int64_t until =
        end != 0 ? end : std::chrono::steady_clock::now().time_since_epoch().count();
    statistics.load.seconds = static_cast<double>(until - start) * 1e-9;
  }
  statistics.weight_bytes = parts_->weight_bytes;
  statistics.kv_bytes = parts_->kv_bytes;
  statistics.scratch_bytes = parts_->scratch_bytes;
  return statistics;
}

Result<RequestId> Engine::submit(Request request) {
  if (parts_->draining) return unavailable("shutting down: no more requests are taken");
  if (!parts_->ready) return unavailable("the model is being loaded");
  const size_t context = parts_->info.context_tokens;
  if (request.prompt.empty()) return invalid_input("the prompt has no tokens");
  const size_t prompt = request.prompt.size();
  const size_t least = request.max_tokens == 0 ? prompt : prompt + request.max_tokens;
  if (least > context) {
    return invalid_input(
        "a sequence has at most {} tokens; {} were requested ({} of the prompt and {} to generate)",
        context, prompt + request.max_tokens, prompt, request.max_tokens);
  }
  for (const TokenId token : request.prompt) {
    if (token < 0 || static_cast<size_t>(token) >= parts_->model.vocabulary_size) {
      return invalid_input("token {} is not in the vocabulary of {}", token,
                           parts_->model.vocabulary_size);
    }
  }
  return parts_->loop->submit(std::move(request));
}

void Engine::cancel(RequestId id) {
  if (parts_->ready) parts_->loop->cancel(id);
}

void Engine::drain(double seconds) {
  parts_->draining = true;
  if (parts_->ready) parts_->loop->drain(seconds);
}

const Tokenizer& Engine::tokenizer() const {
  return *parts_->tokenizer;
}

bool Engine::has_chat_template() const {
  return parts_->chat_template.has_value();
}

Result<std::string> Engine::render_chat(nlohmann::ordered_json variables) const {
  if (!parts_->chat_template) return invalid_input("{}", parts_->chat_template_error);
  const Tokenizer& tokenizer = *parts_->tokenizer;
  const auto text_of = [&](std::optional<TokenId> token) {
    return token ? std::string(tokenizer.token_text(*token)) : std::string();
  };
  variables["bos_token"] = text_of(tokenizer.bos());
  variables["eos_token"] = text_of(tokenizer.eos());
  return parts_->chat_template->render(variables);
}

Result<Measurement> Engine::measure(const MeasurementCase& measurement) {
  if (!parts_->ready) return unavailable("the model is being loaded");
  Result<Measurement> result = unavailable("requests are running; measure an idle engine");
  parts_->loop->run_if_idle(
      [&] { result = run_measurement(*parts_->executor, parts_->rank->plan(), measurement); });
  return result;
}

Result<nlohmann::ordered_json> describe_model_file(const std::filesystem::path& path) {
  auto file = GgufFile::open(path);
  if (!file) return std::unexpected(file.error());
  return describe(*file);
}

}  // namespace lockstep
