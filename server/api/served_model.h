// What the endpoints share: the engine, the names it is served under, and whether it serves yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "server/api/api_error.h"
#include "server/api/call_syntax.h"

namespace lockstep {

enum class ServingState { kLoading, kReady, kDraining };

// What a request may ask for, checked before the engine sees it.
struct RequestLimits {
  uint32_t vocabulary_size = 0;
  uint32_t context_tokens = 0;
  uint32_t choices_max = 128;    // n
  uint32_t requests_max = 1024;  // n times prompts: what runs and waits in the engine at most
};

// What the log says of a request beyond HTTP.
struct GenerationNote {
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  std::string_view finish;  // of its last choice
};

class ServedModel {
 public:
  // `names` is not empty; the engine is open and outlives this. The other two as in RequestLimits.
  ServedModel(Engine& engine, std::vector<std::string> names, uint32_t choices_max,
              uint32_t requests_max);

  Engine& engine() const { return engine_; }
  const std::vector<std::string>& names() const { return names_; }
  RequestLimits limits() const;
  const ChatFamily& chat_family() const { return chat_family_; }

  ServingState state() const { return state_.load(std::memory_order_acquire); }
  void set_state(ServingState state) { state_.store(state, std::memory_order_release); }

  bool has_name(std::string_view name) const;
  // 404 model_not_found for a name that is not served.
  std::optional<ApiError> check_name(std::string_view name) const;
  // 503 while loading or draining.
  std::optional<ApiError> check_ready() const;
  // The engine's error as the client sees it.
  ApiError to_api_error(const Error& error) const;

  // A note is left by the thread that serves a request and taken by the same thread when the
  // request is logged.
  void leave_note(GenerationNote note);
  std::optional<GenerationNote> take_note();

 private:
  Engine& engine_;
  std::vector<std::string> names_;
  uint32_t choices_max_;
  uint32_t requests_max_;
  ChatFamily chat_family_;
  std::atomic<ServingState> state_ = ServingState::kLoading;
  std::mutex notes_mutex_;
  std::unordered_map<std::thread::id, GenerationNote> notes_;  // guarded by notes_mutex_
};

// Seconds until a load that goes on as it did is done, at least 1 and at most 60: for Retry-After.
int seconds_until_loaded(const LoadProgress& progress);

}  // namespace lockstep
