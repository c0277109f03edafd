// The one door to the engine: a model that is resident on this machine and answers requests.
// The server sees nothing below this file.
//
// Threads: open() and load() are called once, by one thread; every other method by any thread.
// The engine runs a thread of its own that schedules and samples, and pinned workers that compute.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/descriptor.h"
#include "engine/base/histogram.h"
#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/evaluation.h"
#include "engine/machine_measurement.h"
#include "engine/machine_plan.h"
#include "engine/text/grammar.h"
#include "engine/text/sampler.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

struct Gpu;
struct GpuPlatform;

// Whether weights and KV cache lie so that the next process can take them over.
enum class MemoryKeeping : uint8_t {
  kNo,
  kWhereHuge,  // in memfds where these are given huge pages
  kAlways,     // in memfds of small pages where there are no others
};

// A memfd that outlives the process, under the name by which it is kept: lockstep-weights,
// lockstep-weights-0, lockstep-kv-0 ...
struct KeptDescriptor {
  std::string name;
  Descriptor descriptor;
};

// What is to be kept for the next process; the engine's own descriptors.
struct MemoryToKeep {
  struct Entry {
    std::string name;
    int descriptor = -1;
  };
  std::vector<Entry> entries;    // none: nothing can be kept, the log says why
  bool is_kept_already = false;  // it is what this process was given, all of it
};

// How a model file is read.
enum class DirectIo : uint8_t {
  kNo,    // through the page cache; what that brings in is dropped again
  kYes,   // past the page cache, where the file system can
  kAuto,  // as kYes, but what lies in the page cache already is copied from there
};

struct EngineOptions {
  std::filesystem::path model;
  std::string devices = "auto";  // that get ranks: "auto", "cpu", "gpu", "all" or "gpu0,node1"
  uint32_t rank_count = 0;       // 0: one per NUMA node of these with processors and memory
  std::vector<double> shares;    // of the work, one per rank; none: as many as it has workers
  bool measure_shares = false;   // instead: by the memory bandwidth that each rank reaches
  // Of a mixture on GPUs and nodes: so many last layers' experts lie on the GPUs; none: as many as
  // there is room for.
  std::optional<uint32_t> gpu_expert_layers = {};
  std::string strategy = "auto";           // how products are split: "auto", "gather" or "reduce"
  std::string exchange_format = "f32";     // of partial sums under "reduce": "f32" or "bf16"
  uint32_t worker_count = 0;               // of each rank; 0: one per physical core of its own
  std::optional<uint32_t> reserved_cores;  // without workers; none: 1 from 8 cores up
  DirectIo direct_io = DirectIo::kAuto;
  bool lock_memory = false;  // what ranks hold on the host is never swapped out, or none is taken
  MemoryKeeping keep_memory = MemoryKeeping::kNo;
  uint32_t context_tokens = 0;  // most tokens (prompt and generated) of one sequence; 0: automatic
  uint32_t kv_pages = 0;        // of the KV cache, 64 tokens each; 0: for as many full sequences
                                // as run at once, or what fits
  uint32_t sequence_count = 8;  // sequences in the running batch at most
  uint32_t batch_tokens = 0;    // tokens of one pass at most; 0: 512, and 2048 where all ranks are
                                // GPUs that have room for it
  // The context and the sequences are what the caller's work takes: no refusal asks for less.
  bool fixed_lengths = false;
  uint32_t logit_rows = 0;  // tokens of one pass whose logits can be had; 0: what serving needs
  // Control tokens that the text of a chat's messages spells are taken for what they are.
  bool special_tokens_in_messages = false;
  uint32_t waiting_requests = 1024;  // requests that may wait; more are refused with kUnavailable
  uint32_t waiting_prompt_tokens = 262'144;  // of their prompts; one request may always wait
  std::string kv_format = "f16";             // "f16", "bf16", "f32" or "q8_0"
  std::string instruction_set;      // a row of the kernel table; empty: the best this machine has
  std::string arithmetic = "auto";  // the profile: "exact", "fast", or "auto", the one for the row
  // For tests; what they point to outlives the engine. GPUs instead of the machine's, and what
  // opens them; null: the machine's, by CUDA.
  const std::vector<Gpu>* gpus = nullptr;
  const GpuPlatform* gpu_platform = nullptr;
  // For tests: called before each pass; where it fails, the pass does.
  std::function<Result<void>()> before_pass = {};
};

// What the model file says, for listings and logs.
struct ModelInfo {
  std::string name;          // general.name, or the file's name without its ending
  std::string architecture;  // "llama"
  std::string format;        // the format most of its weights have: "Q4_0"
  uint64_t parameter_count = 0;
  uint64_t file_bytes = 0;
  int64_t file_seconds = 0;  // modification time, seconds since 1970
  uint32_t vocabulary_size = 0;
  uint32_t trained_context_tokens = 0;
  uint32_t context_tokens = 0;  // most tokens of one sequence as served
  std::string devices;          // that compute: "node0, node1", "gpu0 NVIDIA H200"
  std::string instruction_set;  // "avx512"; of a GPU "sm_90"
  std::string arithmetic;       // the profile: "exact", "fast"; "gpu": GPUs have their own
  std::string kv_format;        // "f16"
  uint32_t kv_page_tokens = 0;  // that a page of the KV cache holds
  uint32_t rank_count = 1;
  uint32_t worker_count = 0;      // of all ranks
  uint32_t batch_tokens = 0;      // of one pass at most
  std::string strategy;           // "gather"
  std::string fingerprint;        // changes when answers may change: version, profile, model
  uint32_t embedding_width = 0;   // numbers of an embedding
  std::string pooling;            // "mean" of all tokens or the "last" one; empty: no embeddings,
  std::string embedding_refusal;  // because of this
};

enum class FinishReason {
  kStop,       // an end token, a stop token or a stop string; an embedding is complete
  kLength,     // max_tokens, or the context is full
  kCancelled,  // cancel(), or the drain cut it off
  kError,      // the model gave no usable numbers, or a bug ended this request alone
  kDeadline,   // Request::deadline_seconds were over
  kDisplaced,  // the queue was full, its holder above his share, and another asked (queue_shares.h)
  // The request's own rules for its answer (grammar, min_tokens, biases) leave no token to go on
  // with, or are too ambiguous or too deep to follow.
  kInvalidRequest,
};
inline constexpr size_t kFinishReasonCount = 7;

// When this many submissions in a row end without usable numbers (NaN or infinity), the model or
// the memory is damaged, not a prompt. One that ends well begins the count anew.
inline constexpr uint64_t kUnusableSubmissionsMax = 3;

struct OutputToken {
  TokenId token = 0;
  std::string bytes;  // what it decodes to; may be half a character, empty for a skipped token
  float logprob = 0;  // with logprobs asked for; of the raw logits
  std::vector<TokenLogprob> top;  // the most likely, descending; as many as were asked for
};

// One step's news of a request.
struct Output {
  std::vector<OutputToken> prompt;  // once, first, with prompt_logprobs: every prompt token;
                                    // the first one's logprob is NaN and its top empty
  std::string text;                 // whole UTF-8 characters, none of them part of a stop string
  std::vector<OutputToken> tokens;  // those whose text is in `text` or gave none; tokens that are
                                    // wholly part of a stop string never come
  std::optional<FinishReason> finish;  // set in the last Output of a request, and only there
  std::string stop;                    // with kStop: the stop string that was found, if one was
  std::string error;                   // with kError and kInvalidRequest
  std::vector<float> embedding;        // with kStop of a Request::embedding; of length 1
  uint32_t prompt_tokens = 0;          // totals so far, right in every Output
  uint32_t cached_tokens = 0;          // of the prompt: taken from the prefix cache, not computed
  uint32_t generated_tokens = 0;
  std::optional<double> queue_seconds;  // from its submission to its first pass; none before
};

struct Request {
  std::string id;  // for the log
  // Whose request it is. Tenants share the machine fairly, and no tenant's prompts speed up
  // another's: the prefix cache is searched within one tenant (and one cache_salt) alone.
  std::string tenant;
  // The client that holds its place in the queue, which holders share. Requests that are submitted
  // together have the same holder.
  std::string holder;
  std::string cache_salt;       // divides a tenant's prefix cache further
  int32_t priority = 0;         // lower goes first, among all tenants
  double deadline_seconds = 0;  // from its submission, after which it ends; 0: none
  std::vector<TokenId> prompt;  // at least one token
  // Output::embedding is made of the prompt, and nothing is generated; what follows but on_output
  // is not looked at.
  bool embedding = false;
  SamplingParameters sampling;
  uint32_t max_tokens = 16;  // 0: the prompt is only computed
  uint32_t min_tokens = 0;   // before which end tokens and stop tokens cannot be sampled
  bool ignore_eos = false;   // end tokens do not end it (they are not banned)
  std::vector<std::string> stop;
  std::vector<TokenId> stop_tokens;
  bool skip_special_tokens = true;          // control tokens give no text
  std::vector<TokenId> visible_tokens;      // but for these
  std::optional<uint32_t> logprobs;         // alternatives per generated token; 0: only its own
  std::optional<uint32_t> prompt_logprobs;  // the same for prompt tokens
  std::shared_ptr<const Grammar> grammar;   // what the generated text must be; none: anything
  // Called by the engine's thread, in order; must not block. After the Output with `finish` it is
  // destroyed and never called again.
  std::function<void(Output&&)> on_output;
};

using RequestId = uint64_t;

struct LoadProgress {
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t bytes_kept = 0;  // of weights that were taken over from an earlier process, not read
  double seconds = 0;       // since load() began; stands still when it has ended
  bool ready = false;

  double bytes_per_second() const {
    return seconds > 0 ? static_cast<double>(bytes_done) / seconds : 0;
  }
};

// Bytes of an arena, or of several, by what their pages are.
struct PageBytes {
  uint64_t huge_1gib = 0;  // of the hugetlb pools
  uint64_t huge_2mib = 0;
  uint64_t transparent = 0;
  uint64_t small = 0;
};

// One rank's memory, and what its workers have spent on the other ranks.
struct RankStatistics {
  int node = -1;          // -1: its memory is bound to none
  int gpu = -1;           // Gpu::index of where it computes and its memory lies; -1: on processors
  std::string gpu_title;  // "gpu0 NVIDIA H200"; empty: on processors
  uint32_t worker_count = 0;
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  // Of them, in the host's memory: all but of a GPU. There the logits where it does not hold them,
  // and among processors what it exchanges.
  uint64_t host_scratch_bytes = 0;
  // Of the weights in the host's memory, found elsewhere than on `node` after the load; none: the
  // kernel does not say.
  std::optional<uint64_t> wrong_node_bytes;
  PageBytes pages;              // of all arenas in the host's memory
  uint64_t exchange_bytes = 0;  // sent to other ranks, or read from them
  double exchange_seconds = 0;  // mean over the rank's workers
  double wait_seconds = 0;      // at barriers; mean over the rank's workers
  // From handing a GPU its part of a pass until it was done, over all passes, by the host's clock;
  // what it waited for other GPUs included. 0: on processors.
  double gpu_seconds = 0;
};

// Why a request was not taken though nothing is wrong with it.
enum class Rejection { kLoading, kDraining, kQueueRequests, kQueueTokens, kFailed };
inline constexpr size_t kRejectionCount = 5;

// A snapshot of counters and gauges; taken without a lock that a step needs.
struct EngineStatistics {
  LoadProgress load;
  uint64_t requests_running = 0;
  uint64_t requests_waiting = 0;
  uint64_t waiting_prompt_tokens = 0;  // of requests that have not been part of a pass
  uint64_t finished_stop = 0;
  uint64_t finished_length = 0;
  uint64_t finished_cancelled = 0;
  uint64_t finished_error = 0;
  uint64_t finished_deadline = 0;
  uint64_t finished_displaced = 0;
  uint64_t finished_invalid_request = 0;
  uint64_t unusable_submissions = 0;  // in a row, up to now: see kUnusableSubmissionsMax
  std::array<uint64_t, kRejectionCount> rejected = {};  // by Rejection
  uint64_t prompt_tokens = 0;                           // computed, each once
  uint64_t generated_tokens = 0;
  uint64_t kv_pages = 0;
  uint64_t kv_pages_free = 0;        // that hold nothing
  uint64_t kv_pages_cached = 0;      // that hold a prefix and are used by no request
  uint64_t kv_evictions = 0;         // pages whose prefix made way
  uint64_t prefix_query_tokens = 0;  // of prompts that were looked up in the prefix cache
  uint64_t prefix_hit_tokens = 0;    // of them found there, and not computed
  uint64_t preemptions = 0;          // sequences that gave up their pages, to be computed again
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  std::vector<RankStatistics> ranks;  // none before the memory is taken
  uint64_t steps = 0;
  // The engine's thread has last shown that it goes on: how long ago, and when (seconds since 1970;
  // 0 before the load). It does so at least once a second when there is nothing to do.
  double heartbeat_age_seconds = 0;
  double heartbeat_timestamp_seconds = 0;
  HistogramSnapshot time_to_first_token_seconds;
  HistogramSnapshot inter_token_seconds;
  HistogramSnapshot queue_seconds;
  HistogramSnapshot request_seconds;           // from submission to the end
  HistogramSnapshot request_prompt_tokens;     // of requests that have ended
  HistogramSnapshot request_generated_tokens;  // of requests that have ended
  HistogramSnapshot step_seconds;
  HistogramSnapshot step_tokens;     // tokens of a pass
  HistogramSnapshot step_sequences;  // sequences of a pass
};

// One measurement of raw speed: no sampling, no text, nothing else running.
struct MeasurementCase {
  uint32_t depth_tokens = 0;      // already in the cache of each sequence
  uint32_t prompt_tokens = 0;     // then given as a prompt, in passes of batch_tokens at most
  uint32_t generated_tokens = 0;  // then computed one pass per token
  uint32_t sequences = 1;         // side by side
  uint32_t repeats = 1;           // of what comes after the depth
};
// What some passes did.
struct MeasuredWork {
  double seconds = 0;
  // That they had to read: every pass the matrices it multiplies with, as the file stores them, and
  // the keys and values of its sequences up to its end. Activations are not counted.
  double bytes = 0;
  // Of the products with weights: 2 per element of a matrix and token, those of the output matrix
  // for tokens whose logits are wanted alone. Attention is not counted.
  double operations = 0;
  // Passes with fewer prompted tokens than batch_tokens and the prompts would allow: where GPUs
  // alone compute, a pass has a deadline, which those of serving keep as far from.
  size_t shortened_passes = 0;
};
struct Measurement {
  MeasuredWork prompt;
  MeasuredWork generate;
};

// What the processors and memory that the engine computes with can do at most, measured; of GPUs
// the memory alone, by its clock and width unless shares follow what was measured.
struct MachineLimits {
  double read_bytes_per_second = 0;           // its workers reading their ranks' memory
  std::vector<MachineArithmetic> arithmetic;  // of its instruction set, all its workers together
};

// The logits that tokens get, without sampling: see Engine::compute_logits().
struct LogitsCase {
  // Each from position 0 on, side by side; all of one length.
  std::vector<std::span<const TokenId>> sequences;
  size_t first = 0;  // logits are wanted from this position on
  // Whether the tokens from `first` on are computed as generated ones are, one per pass; otherwise
  // all of them are a prompt.
  bool generated = false;
};
// Called with the logits after the token at `position` of a sequence; must not throw.
using UseLogits =
    std::function<void(size_t sequence, size_t position, std::span<const float> logits)>;

class Engine {
 public:
  // Reads and checks the model file's headers, makes the plan, reserves nothing yet. Fast. `kept`:
  // what an earlier process has left. What of it this model and these options cannot use is freed;
  // the log says why.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options,
                                              std::vector<KeptDescriptor> kept = {});

  // Takes the memory, starts the workers, reads the weights that were not kept. Once; blocks until
  // ready.
  Result<void> load();

  // The handler is called at most once, by the engine's thread, when a pass has failed (a GPU is
  // lost, say): before every request ends with kError. From then on nothing is taken, with
  // kUnavailable; what is left is to end the process. It must not block. To be set before load().
  void set_failure_handler(std::function<void(const Error&)> handler);
  // Why the engine has failed; none: it has not.
  std::optional<Error> failure() const;

  // What the next process can take over; after load().
  const MemoryToKeep& memory_to_keep() const;

  // Ends everything that runs with kCancelled and joins all threads.
  ~Engine();

  const ModelInfo& model() const;
  EngineStatistics statistics() const;
  // Whether the last kUnusableSubmissionsMax submissions or more gave no usable numbers. The next
  // one that ends well makes it false again. Any thread; lock-free.
  bool output_is_damaged() const;

  // Queues a request. Fails with kInvalidInput when it can never be served (its prompt does not
  // fit: the message holds the numbers; a token is not in the vocabulary), with kUnavailable when
  // loading, draining or full for this holder; then with the time after which there may be room.
  Result<RequestId> submit(Request request);
  // All of them or none; their ids in the same order. Embeddings that come together take one place
  // of those that may wait.
  Result<std::vector<RequestId>> submit_all(std::vector<Request> requests);
  // Fails as submit() would for this holder's shortest prompt if the queue is full, and counts
  // that: a caller asks before it prepares a request at length. Does not fail while loading or
  // draining.
  Result<void> check_room(const std::string& holder);
  // What may wait from here on, as EngineOptions has it; what waits already stays.
  void set_waiting_limits(uint32_t requests, uint32_t prompt_tokens);
  // Counts a request that was turned away before it came here.
  void count_rejected(Rejection reason);

  // What the engine's thread is doing, in one line, for whoever finds that it does not go on. Takes
  // no lock; its numbers may be of two neighbouring passes.
  std::string describe_batch() const;

  // Ends a request within one step, wherever it is; its last Output says kCancelled. An id that has
  // already ended is ignored. Takes no memory.
  void cancel(RequestId id) noexcept;

  // No more submissions; returns when all requests have ended or `seconds` are over (then they are
  // cancelled). Once drained, it stays so.
  void drain(double seconds);

  // Text. Any time after open().
  const Tokenizer& tokenizer() const;
  // The model's chat template over these variables (messages, tools, add_generation_prompt and what
  // the caller adds; bos_token and eos_token come from the model). kInvalidInput with the line for
  // an error of the template; also when the model has no template.
  Result<TracedText> render_chat(nlohmann::ordered_json variables) const;
  // How the tokenizer encodes such a text, which must outlive the options: what its foreign parts
  // spell is never a control token, but for EngineOptions::special_tokens_in_messages and for those
  // that the template itself makes of what it is given (find_foreign_marks()).
  EncodeOptions chat_encoding(const TracedText& text) const;
  bool has_chat_template() const;

  // A grammar that Request::grammar can name, for this model's vocabulary. Any thread; takes at
  // most the budget of time and memory that grammar.h states. kInvalidInput says what is wrong with
  // the source, and where; or that it is too much. kUnavailable: those in use hold too much memory.
  Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSource& source) const;

  // Only while no request is running; for `lockstepd bench`. One result per repeat.
  Result<std::vector<Measurement>> measure(const MeasurementCase& measurement);
  // Takes about a second, and some memory for it.
  Result<MachineLimits> measure_limits();

  // Computes tokens with the passes that serve requests, and hands out logits: each sequence's in
  // order of position. Only while no request is running; for `lockstepd evaluate`. Fails with
  // kInvalidInput for tokens outside of the vocabulary and for what does not fit the context.
  Result<void> compute_logits(const LogitsCase& wanted, const UseLogits& use);

 private:
  struct Parts;
  explicit Engine(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// How the model would lie on this machine, what is wrong with the machine, and the speed to expect
// from its bandwidth, if that is to be measured (some seconds, and only right on an idle machine).
// Of the model only the headers are read. One that does not fit is no error: the plan says so.
Result<MachinePlan> plan_machine(const EngineOptions& options, bool measure);

// Bandwidth and latency between nodes, barriers, exchanges between ranks, and a file's read rate,
// for `lockstepd bench-machine`. Blocks for some seconds per pair of nodes; nothing else should
// run. Fails with kInvalidInput for a file that is none, with kMachineRefused where memory or
// threads are refused.
Result<MachineMeasurement> measure_machine(const MachineMeasurementOptions& options);

// How well `model` predicts the text `tokens` and, with a reference, how far its predictions are
// from the reference's; for `lockstepd evaluate`. Both are loaded and idle, with a context of at
// least options.context_tokens. Fails as check_evaluation() and Engine::compute_logits() do, and
// with kMachineRefused for a model whose output holds no usable numbers.
Result<Evaluation> evaluate(Engine& model, Engine* reference, std::span<const TokenId> tokens,
                            const EvaluationOptions& options);

// Whether that can be done, before anything is loaded: kInvalidInput for a text that is too short
// and for vocabularies that differ.
Result<void> check_evaluation(const Engine& model, const Engine* reference,
                              std::span<const TokenId> tokens, const EvaluationOptions& options);

// The metadata and tensors of a model file, for `lockstepd inspect`. Long arrays are cut to their
// first elements and their length.
Result<nlohmann::ordered_json> describe_model_file(const std::filesystem::path& path);

}  // namespace lockstep
