// The one door to the engine: a model that is resident on this machine and answers requests. Its
// values are in engine/interface; the server sees nothing else of the engine.
//
// Threads: open() and load() are called once, by one thread; every other method by any thread.
// The engine runs a thread of its own that schedules and samples, and pinned workers that compute.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/cache_events.h"
#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/interface/kept_memory.h"
#include "engine/interface/logit_source.h"
#include "engine/interface/measurements.h"
#include "engine/interface/model_info.h"
#include "engine/interface/options.h"
#include "engine/interface/request.h"
#include "engine/interface/statistics.h"
#include "engine/measure/evaluation.h"
#include "engine/measure/host_planning.h"
#include "engine/measure/machine_benchmark.h"
#include "engine/measure/machine_planning.h"
#include "engine/model/model_description.h"
#include "engine/simulation/simulation.h"
#include "engine/text/grammar.h"
#include "engine/text/ranking_text.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

struct Machine;

class Engine final : public LogitSource {
 public:
  // Reads and checks the model file's headers, makes the plan, reserves nothing yet. Fast. `kept`:
  // what an earlier process has left. What of it this model and these options cannot use is freed;
  // the log says why.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options,
                                              std::vector<KeptDescriptor> kept = {});
  // The same on a given machine, whose GPUs have been looked for.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options, const Machine& machine,
                                              std::vector<KeptDescriptor> kept = {});

  // Takes the memory, starts the workers, reads the weights that were not kept. Once; blocks until
  // ready.
  Result<void> load();

  // The handler is called at most once, by the engine's thread, when a pass has failed (a GPU is
  // lost, say): before every request ends with kError. From then on nothing is taken, with
  // kUnavailable; what is left is to end the process. It must not block. To be set before load().
  void set_failure_handler(std::function<void(const Error&)> handler);
  // From the load on what the prefix cache knows is told there; it must outlive this. Before
  // load(); without it nothing is told.
  void publish_cache_events(CacheEvents& events);
  // Why the engine has failed; none: it has not.
  std::optional<Error> failure() const;

  // Gives what the next process can take over; after load().
  const MemoryToKeep& memory_to_keep() const;

  // Ends everything that runs with kCancelled and joins all threads.
  ~Engine() override;

  const ModelInfo& model() const override;
  EngineStatistics statistics() const;
  // As statistics() has it; 0 before the load. Any thread; takes no lock and no memory.
  double heartbeat_age_seconds() const noexcept;
  // Whether the last kUnusableSubmissionsMax submissions or more gave no usable numbers. The next
  // one that ends well makes it false again. Any thread; lock-free.
  bool output_is_damaged() const;

  // The host that answers requests in this one's place; none: this one does. From open() on the
  // same. Any thread.
  std::optional<std::string> leader() const;
  // Whether all hosts are there that compute the model together. Any thread; lock-free.
  bool hosts_are_together() const;

  // Whether the cache's pages are kept in files: the directory of EngineOptions could be used.
  // False before the load. Any thread; lock-free.
  bool keeps_files() const;

  // Queues a request. Fails with kInvalidInput when it can never be served (its prompt does not
  // fit: the message holds the numbers; a token is not in the vocabulary), with kUnavailable when
  // loading, draining or full for this tenant; then with the time after which there may be space.
  Result<RequestId> submit(Request request);
  // Fails as submit() does for a request that can never be served; queues nothing.
  Result<void> check_request(const Request& request) const;
  // All of them or none; their ids in the same order. Embeddings that come together take one place
  // of those that may wait.
  Result<std::vector<RequestId>> submit_all(std::vector<Request> requests);
  // Fails as submit() would for this tenant's shortest prompt if the queue is full, and counts
  // that: a caller asks before it prepares a request at length. Does not fail while loading or
  // draining.
  Result<void> check_queue(const std::string& tenant);
  // Bounds what may wait from here on, as EngineOptions has it; what waits already stays.
  void set_waiting_limits(uint32_t requests, uint32_t prompt_tokens);
  // Counts a request that was turned away before it came here.
  void count_rejected(Rejection reason);

  // Tells what the engine's thread is doing, in one line, for one who finds that it does not go on.
  // Takes no lock; its numbers may be of two neighbouring passes.
  std::string describe_batch() const;

  // Ends a request within one step, wherever it is; its last Output says kCancelled. An id that has
  // already ended is ignored. Takes no memory.
  void cancel(RequestId id) noexcept;

  // No more submissions; returns when all requests have ended or `seconds` are over (then they are
  // cancelled). Once drained, it stays so.
  void drain(double seconds);

  // Text. Any time after open().
  const Tokenizer& tokenizer() const override;
  // The model's chat template over these variables (messages, tools, add_generation_prompt and what
  // the caller adds; bos_token and eos_token come from the model). kInvalidInput with the line for
  // an error of the template; also when the model has no template.
  Result<TracedText> render_chat(nlohmann::ordered_json variables) const;
  // How the tokenizer encodes such a text, which must outlive the options: what its foreign parts
  // spell is never a control token, but for EngineOptions::special_tokens_in_messages and for those
  // that the template itself makes of what it is given (find_foreign_marks()).
  EncodeOptions chat_encoding(const TracedText& text) const;
  bool has_chat_template() const;

  // The prompt of a Request::ranking; of one that is longer than the context, at least its first
  // tokens.
  RankingPrompt ranking_prompt(std::string_view query, std::string_view document) const;

  // A grammar that Request::grammar can name, for this model's vocabulary. Any thread; takes at
  // most the budget of time and memory that grammar.h states. kInvalidInput says what is wrong with
  // the source, and where; or that it is too much. kUnavailable: those in use hold too much memory.
  Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSource& source) const;

  // Only while no request is running; for `lockstepd bench`. One result per repeat.
  Result<std::vector<Measurement>> measure(const MeasurementCase& measurement);
  // Takes about a second, and some memory for it.
  Result<MachineLimits> measure_limits();

  Result<void> compute_logits(const LogitsCase& wanted, const UseLogits& use) override;

 private:
  struct Parts;
  explicit Engine(std::unique_ptr<Parts> parts);
  static Result<std::unique_ptr<Engine>> lay_out(std::unique_ptr<Parts> parts, Machine machine);
  std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep
