// The model that the endpoints share: the engine, the names it is served under, and whether it
// serves yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/engine.h"
#include "server/access/key_limits.h"
#include "server/api/common/api_error.h"
#include "server/api/common/conversations.h"
#include "server/api/common/preparation.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {

enum class ServingState { kLoading, kReady, kDraining };

// Whether the engine moves while it has work.
enum class EngineHealth {
  kFine,
  kLate,     // not ready: the pass takes suspiciously long
  kStalled,  // not alive either: it will hardly move again
  kFailed,   // it never will: the process is about to end
};

// The limits of a request, checked before the engine sees it.
struct RequestLimits {
  uint32_t vocabulary_size = 0;
  uint32_t context_tokens = 0;
  uint32_t choices_max = 128;    // n
  uint32_t slot_count = 1;       // of id_slot; 0: there are no slots, and any number is taken
  uint32_t requests_max = 1024;  // n times prompts: what runs and waits in the engine at most
  uint64_t prompt_tokens_max = 1'048'576;  // of the prompts of all choices together
  // The bytes that a whole (not streamed) answer may come to, as make_requests() estimates it; one
  // choice of one prompt may always fill the context.
  uint64_t answer_bytes_max = 256 << 20;
  double request_seconds = 0;  // after which a request ends; 0: never
  bool whole_texts = false;    // ModelInfo::computes_whole_texts
};

// Those that follow from the model and from what its engine lets wait; the others are the defaults.
RequestLimits request_limits(const ModelInfo& model, const EngineOptions& options);

class ServedModel {
 public:
  // The longest name where any is taken: it is kept while the answer is made, and repeated in every
  // chunk.
  static constexpr size_t kNameBytesMax = 256;

  // `names`: none is the name in the file; "*" among them takes any name. The engine is open and
  // outlives this. `directory`: of files of conversations, where the engine keeps its own there.
  ServedModel(Engine& engine, std::vector<std::string> names, const RequestLimits& limits,
              const std::filesystem::path& directory = {});

  Engine& engine() const { return engine_; }
  const std::vector<std::string>& names() const { return names_; }  // at least one
  // Any thread; a request keeps those with which it began. Without slots where none are kept.
  RequestLimits limits() const;
  void set_limits(const RequestLimits& limits);
  // Those of slots; any thread.
  Conversations& conversations() const { return conversations_; }
  // Whether there are any: the model is loaded, and its engine keeps files in the directory, which
  // it does not for ranks on GPUs, or where another process holds it. Lock-free.
  bool keeps_conversations() const {
    return conversations_.has_directory() && engine_.keeps_files();
  }
  const ChatFamily& chat_family() const { return chat_family_; }
  // The threads that prepare requests. Any thread.
  Preparation& preparation() const { return preparation_; }

  ServingState state() const { return state_.load(std::memory_order_acquire); }
  void set_state(ServingState state) { state_.store(state, std::memory_order_release); }

  EngineHealth health() const { return health_.load(std::memory_order_acquire); }
  // Once it has failed it stays so.
  void set_health(EngineHealth health);

  bool has_name(std::string_view name) const;
  bool takes_any_name() const { return any_name_; }
  // 404 model_not_found for a name that is not served.
  std::optional<ApiError> check_name(std::string_view name) const;
  // The same of a request's "model"; left out it becomes the first name: there is one model.
  std::optional<ApiError> resolve_name(std::optional<std::string>& name) const;
  // 503 while loading, draining or stalled, and once failed: no request is taken.
  std::optional<ApiError> unready() const;
  std::optional<ApiError> follows() const;
  // The same, and counted as a request that was turned away.
  std::optional<ApiError> check_ready() const;
  // 503 if the engine's queue is full for this tenant (HttpRequest), and counted.
  std::optional<ApiError> check_queue(const std::string& tenant) const;
  // As check_ready(), not counted, and while the engine is late: requests would be better off
  // elsewhere.
  std::optional<ApiError> check_health() const;
  // The engine's error as the client sees it.
  ApiError to_api_error(const Error& error) const;

  // The allowances of the owners of API keys; null: there are no keys. Set before requests come;
  // outlives this.
  void set_key_limits(KeyLimits* limits) { key_limits_ = limits; }
  KeyLimits* key_limits() const { return key_limits_; }
  // Whether notes bring the request's body, for the log. Any thread.
  bool logs_prompts() const { return logs_prompts_.load(std::memory_order_relaxed); }
  void set_logs_prompts(bool logs) { logs_prompts_.store(logs, std::memory_order_relaxed); }

  // Says in the log, the first time, that tools are written into prompts in a general form.
  void note_general_tools() const;

 private:
  Engine& engine_;
  std::vector<std::string> names_;
  bool any_name_ = false;
  mutable std::atomic<bool> general_tools_noted_ = false;
  mutable Mutex limits_mutex_;
  RequestLimits limits_ LOCKSTEP_GUARDED_BY(limits_mutex_);
  ChatFamily chat_family_;
  mutable Preparation preparation_;
  mutable Conversations conversations_;
  std::atomic<ServingState> state_ = ServingState::kLoading;
  KeyLimits* key_limits_ = nullptr;
  std::atomic<EngineHealth> health_ = EngineHealth::kFine;
  std::atomic<bool> logs_prompts_ = false;
};

// Seconds until a load that goes on as it did is done, at least 1 and at most 60: for Retry-After.
int seconds_until_loaded(const LoadProgress& progress);

}  // namespace lockstep
