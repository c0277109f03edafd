#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <new>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/machine/device_choice.h"
#include "engine/measure/machine_benchmark.h"
#include "engine/measure/measurement.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/model/pooling.h"
#include "engine/placement/device_rules.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/machine.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/memory_handover.h"
#include "engine/placement/memory_identity.h"
#include "engine/placement/memory_remedies.h"
#include "engine/placement/model_info.h"
#include "engine/placement/model_layout.h"
#include "engine/placement/rank_choice.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/gpu/gpu_platform.h"
#include "engine/runtime/ranks.h"
#include "engine/serving/chat_text.h"
#include "engine/serving/draft_model.h"
#include "engine/serving/engine_counters.h"
#include "engine/serving/engine_loop.h"
#include "engine/serving/host_join.h"
#include "engine/serving/kept_pages.h"
#include "engine/serving/rank_report.h"
#include "engine/serving/scheduler_limits.h"
#include "engine/serving/weight_filling.h"
#include "engine/text/grammar/grammar_cache.h"
#include "engine/text/model_tokenizer.h"

namespace lockstep {

// In order of construction: later members use earlier ones.
struct Engine::Parts {
  Parts(EngineOptions given, GgufFile model_file, Model built, std::vector<KeptDescriptor> kept)
      : options(std::move(given)),
        file(std::move(model_file)),
        model(std::move(built)),
        handover(std::move(kept)) {
    waiting.requests = options.waiting_requests;
    waiting.prompt_tokens = options.waiting_prompt_tokens;
  }

  // With the model's file read and checked; no machine is looked at yet.
  static Result<std::unique_ptr<Parts>> open(const EngineOptions& options,
                                             std::vector<KeptDescriptor> kept);
  Result<void> read_texts();
  Result<void> lay_out();
  // Which of the kept memory fits the layout; frees the rest.
  Result<void> examine_kept();
  Result<void> size();
  Result<void> make_ranks();
  Result<void> fill_weights();
  Result<void> load();
  // kInvalidInput for a token outside of the vocabulary.
  Result<void> check_tokens(std::span<const TokenId> tokens) const;
  // Memory of the host alone can be handed over.
  MemoryKeeping keeping() const {
    return layout.rules().traits.memory_can_be_kept ? options.keep_memory : MemoryKeeping::kNo;
  }
  HostSubject subject() const { return {file, model, options, *kernels}; }
  // On the engine's thread, between passes; kUnavailable while there is something else to do,
  // kMachineRefused where there is no memory for it.
  Result<void> run_if_idle(const std::function<void()>& task);

  EngineOptions options;
  GgufFile file;
  Model model;
  const KernelTable* kernels = nullptr;
  ModelInfo info;
  RowUse use;
  bool knows_segments = false;  // has_segments()
  Machine machine;
  Settings settings;                      // what the options come to on this machine
  std::unique_ptr<DraftFile> draft_file;  // null: no smaller model drafts
  ModelLayout layout;
  MemoryHandover handover;
  MemoryIdentity identity;  // empty where nothing is kept
  Descriptor description;   // of what is kept for the next process
  MemoryToKeep to_keep;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<GrammarCache> grammars;
  std::optional<ChatText> chat;
  RankingText ranking_text;

  EngineCounters counters;
  WaitingLimits waiting;
  std::atomic<uint64_t> bytes_done = 0;
  std::atomic<uint64_t> bytes_total = 0;
  std::atomic<uint64_t> bytes_kept = 0;
  std::atomic<int64_t> load_started_ns = 0;  // steady clock; 0: not yet
  std::atomic<int64_t> load_ended_ns = 0;
  std::atomic<bool> ready = false;
  std::atomic<bool> draining = false;
  std::function<void(const Error&)> on_failure;
  CacheEvents* cache_events = nullptr;

  HostJoin hosts;                   // of none where this host computes alone
  std::optional<GpuPlatform> gpus;  // the machine's, used as the settings say
  std::unique_ptr<Ranks> ranks;
  std::unique_ptr<RankReport> rank_statistics;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<DraftModel> draft_model;  // null: none
  std::unique_ptr<KeptPages> kept_pages;    // none: pages that make way are lost
  std::unique_ptr<EngineLoop> loop;
  std::unique_ptr<HostMember> member;  // none: this host computes alone
};

Result<void> Engine::Parts::read_texts() {
  auto data = read_tokenizer_data(file);
  if (!data) return std::unexpected(data.error());
  auto made = make_tokenizer(std::move(*data));
  if (!made) return std::unexpected(made.error());
  tokenizer = std::move(*made);
  if (tokenizer->vocabulary_size() > model.vocabulary_size) {
    return invalid_input("tokenizer.ggml.tokens has {} entries, token_embd.weight only {} rows",
                         tokenizer->vocabulary_size(), model.vocabulary_size);
  }
  grammars = std::make_unique<GrammarCache>(*tokenizer, model.vocabulary_size);
  auto read = ChatText::read(file, *tokenizer, options.special_tokens_in_messages);
  if (!read) return std::unexpected(read.error());
  chat = std::move(*read);
  auto ranking = RankingText::read(file);
  if (!ranking) return std::unexpected(ranking.error());
  ranking_text = std::move(*ranking);
  return {};
}

Result<void> Engine::Parts::lay_out() {
  auto parsed = parse(options, *kernels, machine);
  if (!parsed) return std::unexpected(parsed.error());
  auto draft = open_draft_file(options, file, *parsed, model);
  if (!draft) return std::unexpected(draft.error());
  draft_file = std::move(*draft);
  auto ranked = lay_out_ranks(model, *parsed, machine, handover.kept_rank_count());
  if (!ranked) return std::unexpected(ranked.error());
  layout = std::move(ranked->layout);
  settings = std::move(ranked->settings);
  options = with_ranks_of(settings, std::move(options));
  spdlog::info("devices {}: {}", layout.device_titles, layout.devices.reason);
  for (const std::string& idle : idle_sentences(layout.devices)) spdlog::warn(idle);
  const std::string unheeded = layout.rules().unheeded_text(options.arithmetic);
  if (!unheeded.empty()) spdlog::info(unheeded);
  info = describe_model(file, model, options, layout);
  use = describe_uses(file, model, info);
  knows_segments = has_segments(model.graph);
  if (options.hosts.is_group()) {
    if (options.hosts.is_checked_only) return check_host_options(options, layout);
    if (auto joined = hosts.join(subject(), layout); !joined) return joined;
  }
  if (auto examined = examine_kept(); !examined) return examined;
  if (auto sized = size(); !sized) return sized;
  describe_ranks(layout, info);
  return {};
}

// The context that there is space for; of several hosts the shortest.
Result<void> Engine::Parts::size() {
  auto sized = size_context(model, settings, machine, layout);
  if (!sized) {
    sized = std::unexpected(
        with_memory_remedies(sized.error(), model, options, *kernels, machine, layout));
  }
  return hosts.is_joined() ? hosts.agree(model, machine, std::move(sized), layout) : sized;
}

Result<void> Engine::Parts::examine_kept() {
  if (!layout.rules().traits.memory_can_be_kept) {
    handover.refuse("a GPU's memory cannot be handed over");
    if (options.keep_memory == MemoryKeeping::kAlways) {
      spdlog::info(
          "the weights are not kept for the next start: a GPU's memory ends with the "
          "process");
    }
  } else if (options.keep_memory == MemoryKeeping::kNo) {
    handover.refuse("keeping them is switched off");
  } else {
    auto identified = identify_memory(file, model, options, *kernels, layout);
    if (!identified) return std::unexpected(identified.error());
    identity = std::move(*identified);
    handover.examine(identity, layout.sizes);
  }
  layout.weights_held = handover.has_weights();
  layout.kv_pages_held = handover.kv_pages();
  machine.read_memory();  // what was of no use is free by now
  return {};
}

Result<std::unique_ptr<Engine::Parts>> Engine::Parts::open(const EngineOptions& options,
                                                           std::vector<KeptDescriptor> kept) {
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
  auto model = build_model({.file = *file, .context_tokens = options.context_tokens});
  if (!model) return with_file(model.error());
  auto parts =
      std::make_unique<Parts>(options, std::move(*file), std::move(*model), std::move(kept));
  parts->kernels = *kernels;
  if (auto read = parts->read_texts(); !read) return with_file(read.error());
  return parts;
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options,
                                             std::vector<KeptDescriptor> kept) {
  auto parts = Parts::open(options, std::move(kept));
  if (!parts) return std::unexpected(parts.error());
  return lay_out(std::move(*parts), Machine::read(may_choose_gpus(options.devices)));
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options, const Machine& machine,
                                             std::vector<KeptDescriptor> kept) {
  auto parts = Parts::open(options, std::move(kept));
  if (!parts) return std::unexpected(parts.error());
  return lay_out(std::move(*parts), machine);
}

Result<std::unique_ptr<Engine>> Engine::lay_out(std::unique_ptr<Parts> parts, Machine machine) {
  parts->machine = std::move(machine);
  if (auto laid_out = parts->lay_out(); !laid_out) {
    parts->hosts.leave(laid_out.error());
    return std::unexpected(laid_out.error());
  }
  return std::unique_ptr<Engine>(new Engine(std::move(parts)));
}

Engine::Engine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Engine::~Engine() = default;

Result<void> Engine::Parts::make_ranks() {
  if (machine.gpu_platform != nullptr) {
    gpus = *machine.gpu_platform;
    gpus->settings = settings.gpus;
    if (hosts.is_joined()) gpus->settings.pass_deadline = hosts.pass_deadline(settings.gpus);
  }
  const GpuPlatform* const platform = gpus ? &*gpus : nullptr;
  if (hosts.is_joined()) {
    if (auto opened = hosts.open(model, layout); !opened) return opened;
  }
  const auto make = [this, platform] {
    auto sources = handover.sources(layout.places.size(), keeping(), options.lock_memory);
    if (hosts.is_joined()) return hosts.make_ranks(model, layout, std::move(sources), platform);
    return Ranks::make(model.graph, layout.split, layout.plan_options, layout.places,
                       std::move(sources), platform);
  };
  auto made = make();
  if (!made && handover.has_weights()) {
    handover.refuse(made.error().message);
    made = make();
  }
  if (!made) return std::unexpected(made.error());
  ranks = std::move(*made);
  executor = std::make_unique<Executor>(*ranks, *kernels);
  if (draft_file == nullptr) return {};
  auto draft = DraftModel::make(*draft_file, layout, model, *executor, *kernels,
                                gpus ? &*gpus : nullptr, options);
  if (!draft) return std::unexpected(draft.error());
  draft_model = std::move(*draft);
  return {};
}

// From the files, unless an earlier process has left the model's.
Result<void> Engine::Parts::fill_weights() {
  std::vector<WeightFilling> files;
  if (draft_model) files.push_back(draft_model->filling());
  if (handover.has_weights()) {
    uint64_t weight_bytes = 0;
    uint64_t kv_bytes = 0;
    for (size_t rank = 0; rank < ranks->count(); ++rank) {
      weight_bytes += (*ranks)[rank].plan().weight_bytes;
      kv_bytes += (*ranks)[rank].plan().kv.size_bytes();
    }
    bytes_kept = weight_bytes;
    spdlog::info("took over {} MiB of weights and {} MiB of the KV cache's memory; nothing is read",
                 weight_bytes >> 20U, handover.kv_pages() ? kv_bytes >> 20U : 0);
  } else {
    files.emplace_back(file, model.graph, *ranks);
  }
  uint64_t bytes = 0;
  for (const WeightFilling& each : files) bytes += each.bytes();
  bytes_total = bytes;
  for (const WeightFilling& each : files) {
    if (auto filled = each.run(options.direct_io, bytes_done); !filled) return filled;
  }
  return {};
}

Result<void> Engine::Parts::load() {
  if (auto made = make_ranks(); !made) return made;
  if (auto filled = fill_weights(); !filled) return filled;
  to_keep = handover.leave(*ranks, identity, layout.plan_options.kv_pages, keeping(), description);
  rank_statistics = std::make_unique<RankReport>(*ranks, machine.topology,
                                                 draft_model ? &draft_model->ranks() : nullptr);
  SchedulerLimits limits = scheduler_limits(
      {model, settings, options, layout, *executor, ranks->root_plan(), cache_events});
  kept_pages = KeptPages::keep(
      *ranks, options, layout.rules().traits.memory_can_be_kept, limits,
      [&] { return identify_pages(file, model, options, *kernels, layout, info.fingerprint); });
  loop = std::make_unique<EngineLoop>(
      *executor, limits, waiting, *tokenizer, model.vocabulary_size, use, counters,
      PassHooks{machine.before_pass, on_failure},
      LoopDrafters{settings.drafters.row, draft_model ? &draft_model->stage() : nullptr});
  if (!hosts.is_joined()) return {};
  auto member_made = hosts.begin(subject(), layout, *executor, *loop);
  if (!member_made) return std::unexpected(member_made.error());
  member = std::move(*member_made);
  return {};
}

Result<void> Engine::Parts::check_tokens(std::span<const TokenId> tokens) const {
  for (const TokenId token : tokens) {
    if (token >= 0 && static_cast<size_t>(token) < model.vocabulary_size) continue;
    return invalid_input("token {} is not in the vocabulary of {}", token, model.vocabulary_size);
  }
  return {};
}

Result<void> Engine::Parts::run_if_idle(const std::function<void()>& task) {
  if (!ready) return unavailable("the model is being loaded");
  if (!options.hosts.leads()) {
    return unavailable("this host follows {}: measure there", hosts.leader());
  }
  bool ran = false;
  bool has_memory = true;
  loop->run_if_idle([&] {
    ran = true;
    try {
      task();
    } catch (const std::bad_alloc&) {
      has_memory = false;
    }
  });
  if (!has_memory) return machine_refused("there is no memory for it: try again, or with less");
  if (ran) return {};
  if (auto failure = loop->failure()) return std::unexpected(std::move(*failure));
  return unavailable("requests are running; measure an idle engine");
}

Result<void> Engine::load() {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  parts_->load_started_ns = now();
  auto loaded = parts_->load();
  if (!loaded) parts_->hosts.leave(loaded.error());
  parts_->load_ended_ns = now();
  parts_->ready = loaded.has_value();
  return loaded;
}

void Engine::set_failure_handler(std::function<void(const Error&)> handler) {
  parts_->on_failure = std::move(handler);
}

void Engine::publish_cache_events(CacheEvents& events) {
  parts_->cache_events = &events;
}

std::optional<Error> Engine::failure() const {
  return parts_->ready ? parts_->loop->failure() : std::nullopt;
}

const MemoryToKeep& Engine::memory_to_keep() const {
  return parts_->to_keep;
}

const ModelInfo& Engine::model() const {
  return parts_->info;
}

EngineStatistics Engine::statistics() const {
  EngineStatistics statistics;
  parts_->counters.fill(statistics);
  for (size_t source = 0; source < kDraftSourceCount; ++source) {
    statistics.drafts[source].drafter =
        parts_->settings.drafters.name_of(static_cast<DraftSource>(source));
  }
  statistics.load.bytes_done = parts_->bytes_done;
  statistics.load.bytes_total = parts_->bytes_total;
  statistics.load.bytes_kept = parts_->bytes_kept;
  statistics.load.ready = parts_->ready;
  const int64_t start = parts_->load_started_ns;
  if (start != 0) {
    const int64_t end = parts_->load_ended_ns;
    const int64_t until =
        end != 0 ? end : std::chrono::steady_clock::now().time_since_epoch().count();
    statistics.load.seconds = static_cast<double>(until - start) * 1e-9;
  }
  if (!parts_->ready) return statistics;
  parts_->loop->activity().fill(statistics);
  if (parts_->kept_pages) statistics.tiers = parts_->kept_pages->statistics();
  if (parts_->member) statistics.hosts = parts_->hosts.statistics();
  statistics.hosts.together = hosts_are_together();
  statistics.ranks = parts_->rank_statistics->statistics();
  for (const RankStatistics& rank : statistics.ranks) {
    statistics.weight_bytes += rank.weight_bytes;
    statistics.kv_bytes += rank.kv_bytes;
    statistics.scratch_bytes += rank.scratch_bytes;
  }
  return statistics;
}

double Engine::heartbeat_age_seconds() const noexcept {
  return parts_->ready ? parts_->loop->activity().heartbeat_age_seconds() : 0;
}

bool Engine::output_is_damaged() const {
  return parts_->counters.unusable_submissions >= kUnusableSubmissionsMax;
}

std::optional<std::string> Engine::leader() const {
  if (parts_->options.hosts.leads()) return std::nullopt;
  return parts_->hosts.leader();
}

bool Engine::hosts_are_together() const {
  return !parts_->ready || parts_->member == nullptr || parts_->member->is_together();
}

bool Engine::keeps_files() const {
  return parts_->ready && parts_->kept_pages && parts_->kept_pages->has_files();
}

void Engine::set_waiting_limits(uint32_t requests, uint32_t prompt_tokens) {
  parts_->waiting.requests = requests;
  parts_->waiting.prompt_tokens = prompt_tokens;
}

Result<void> Engine::check_request(const Request& request) const {
  const ModelInfo& info = parts_->info;
  const size_t context = info.context_tokens;
  if (request.prompt.empty()) return invalid_input("the prompt has no tokens");
  if (request.embedding && info.pooling.empty()) {
    return invalid_input("this model gives no embeddings: {}", info.embedding_refusal);
  }
  if (request.ranking && !info.ranking_refusal.empty()) {
    return invalid_input("this model ranks no texts: {}", info.ranking_refusal);
  }
  const bool generates = !request.embedding && !request.ranking;
  if (generates && !info.generation_refusal.empty()) {
    return invalid_input("this model generates nothing: {}", info.generation_refusal);
  }
  const size_t prompt = request.prompt.size();
  const size_t generated = generates ? request.max_tokens : 0;
  if (prompt + generated > context) {
    return invalid_input(
        "a sequence has at most {} tokens; {} were requested ({} of the prompt and {} to generate)",
        context, prompt + generated, prompt, generated);
  }
  return parts_->check_tokens(request.prompt);
}

Result<RequestId> Engine::submit(Request request) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  const auto ids = submit_all(std::move(requests));
  if (!ids) return std::unexpected(ids.error());
  return ids->front();
}

Result<std::vector<RequestId>> Engine::submit_all(std::vector<Request> requests) {
  if (parts_->draining) {
    count_rejected(Rejection::kDraining);
    return unavailable("shutting down: no more requests are taken");
  }
  if (!parts_->ready) {
    count_rejected(Rejection::kLoading);
    return unavailable("the model is being loaded");
  }
  if (const auto host = leader()) {
    return unavailable("this host follows {}: requests go there", *host);
  }
  for (Request& request : requests) {
    if (!parts_->knows_segments) request.second_text = std::numeric_limits<size_t>::max();
    if (auto checked = check_request(request); !checked) {
      return std::unexpected(checked.error());
    }
  }
  return parts_->loop->submit(std::move(requests));
}

Result<void> Engine::check_queue(const std::string& tenant) {
  if (parts_->draining || !parts_->ready) return {};
  return parts_->loop->check_queue(tenant);
}

void Engine::count_rejected(Rejection reason) {
  parts_->counters.rejected[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

std::string Engine::describe_batch() const {
  if (!parts_->ready) return "the model is being loaded";
  return parts_->loop->activity().describe();
}

void Engine::cancel(RequestId id) noexcept {
  if (parts_->ready) parts_->loop->cancel(id);
}

void Engine::drain(double seconds) {
  parts_->draining = true;
  if (!parts_->ready) return;
  // A follower has no requests of its own, and the leader may have some.
  if (leader()) return parts_->member->wait_until_apart(seconds);
  parts_->loop->drain(seconds);
}

const Tokenizer& Engine::tokenizer() const {
  return *parts_->tokenizer;
}

bool Engine::has_chat_template() const {
  return parts_->chat->has_template();
}

Result<TracedText> Engine::render_chat(nlohmann::ordered_json variables) const {
  return parts_->chat->render(std::move(variables));
}

RankingPrompt Engine::ranking_prompt(std::string_view query, std::string_view document) const {
  return parts_->ranking_text.encode(tokenizer(), query, document, model().context_tokens);
}

EncodeOptions Engine::chat_encoding(const TracedText& text) const {
  return parts_->chat->encoding(text);
}

Result<std::shared_ptr<const Grammar>> Engine::compile_grammar(const GrammarSource& source) const {
  return parts_->grammars->find_or_compile(source);
}

Result<std::vector<Measurement>> Engine::measure(const MeasurementCase& measurement) {
  Result<std::vector<Measurement>> result = std::vector<Measurement>();
  auto ran = parts_->run_if_idle([&] {
    const ModelWork work(parts_->model.graph, parts_->layout.plan_options.kv_format);
    result = run_measurement(*parts_->executor, parts_->ranks->root_plan(), work, measurement);
  });
  return ran ? std::move(result) : std::unexpected(ran.error());
}

Result<MachineLimits> Engine::measure_limits() {
  const ModelLayout& layout = parts_->layout;
  const auto nodes = layout.node_places();
  Result<MachineLimits> result = MachineLimits();
  if (!layout.node_places().empty()) {
    auto ran =
        parts_->run_if_idle([&] { result = measure_limits_of(nodes, parts_->kernels->name); });
    if (!ran) return std::unexpected(ran.error());
  }
  if (!result) return result;
  const auto& speeds = layout.gpu_speeds;
  for (const int gpu : layout.devices.gpus) {
    result->read_bytes_per_second += speeds
                                         ? speeds->bytes_per_second.at(gpu)
                                         : gpu_at(parts_->machine.topology, gpu).bytes_per_second;
  }
  // The GPUs' is not known.
  if (nodes.size() < layout.places.size()) result->arithmetic.clear();
  return result;
}

Result<void> Engine::compute_logits(const LogitsCase& wanted, const UseLogits& use) {
  if (!model().generation_refusal.empty()) {
    return invalid_input("this model has no logits: {}", model().generation_refusal);
  }
  for (const auto sequence : wanted.sequences) {
    if (sequence.size() != wanted.sequences[0].size()) {
      return invalid_input("sequences of {} and {} tokens side by side; they must be of one length",
                           wanted.sequences[0].size(), sequence.size());
    }
    if (auto known = parts_->check_tokens(sequence); !known) return known;
  }
  Result<void> result;
  auto ran = parts_->run_if_idle(
      [&] { result = run_logits(*parts_->executor, parts_->ranks->root_plan(), wanted, use); });
  return ran ? result : ran;
}

}  // namespace lockstep
