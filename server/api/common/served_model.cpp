#include "server/api/common/served_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr int kRetryWhenDrainingSeconds = 5;  // about what a restart of a small model takes
constexpr int kRetryWhileLoadingSecondsMax = 60;
constexpr int kRetryWhenStalledSeconds = 10;

ApiError stalled() {
  return not_now("stalled", "The model has not moved for too long; ask another server",
                 kRetryWhenStalledSeconds);
}

ApiError failed() {
  return not_now("engine_failed", "The engine has failed and the server starts again; ask later",
                 kRetryWhenStalledSeconds);
}

ApiError damaged() {
  return not_now("output_damaged",
                 fmt::format("The last {} requests gave no usable numbers (NaN or infinity): the "
                             "model file or the memory is damaged; ask another server",
                             kUnusableSubmissionsMax),
                 kRetryWhenStalledSeconds);
}

// Full contexts that one request may bring however few run at once, as its choices.
constexpr uint64_t kFullContextsMin = 8;

// Full contexts that the slots of one owner hold together, and those of all owners: their tokens
// have 4 bytes each.
constexpr size_t kOwnerContextsMost = 8;
constexpr size_t kSlotContextsMost = 64;

}  // namespace

// One request may have as much as waits and runs when the engine is full.
RequestLimits request_limits(const ModelInfo& model, const EngineOptions& options) {
  const uint64_t contexts = std::max<uint64_t>(options.sequence_count, kFullContextsMin);
  RequestLimits limits;
  limits.vocabulary_size = model.vocabulary_size;
  limits.context_tokens = model.context_tokens;
  limits.whole_texts = model.computes_whole_texts;
  limits.slot_count = options.sequence_count;
  limits.requests_max = options.waiting_requests + options.sequence_count;
  limits.prompt_tokens_max = options.waiting_prompt_tokens + contexts * model.context_tokens;
  return limits;
}

ServedModel::ServedModel(Engine& engine, std::vector<std::string> names,
                         const RequestLimits& limits, const std::filesystem::path& directory)
    : engine_(engine),
      names_(std::move(names)),
      limits_(limits),
      chat_family_(find_chat_family(engine)),
      preparation_(preparation_limits(engine.model().worker_count)),
      conversations_({.directory = directory,
                      .model = fmt::format("{} of {} tokens", engine.model().name,
                                           engine.model().vocabulary_size),
                      .slot_count = limits.slot_count,
                      .owner_tokens_most = kOwnerContextsMost * limits.context_tokens,
                      .tokens_most = kSlotContextsMost * limits.context_tokens}) {
  any_name_ = std::erase(names_, "*") > 0;
  if (names_.empty()) names_.push_back(engine.model().name);
}

RequestLimits ServedModel::limits() const {
  const MutexLock lock(limits_mutex_);
  RequestLimits limits = limits_;
  if (!keeps_conversations()) limits.slot_count = 0;
  return limits;
}

void ServedModel::set_limits(const RequestLimits& limits) {
  const MutexLock lock(limits_mutex_);
  limits_ = limits;
}

bool ServedModel::has_name(std::string_view name) const {
  if (any_name_ && name.size() <= kNameBytesMax) return true;
  return std::ranges::find(names_, name) != names_.end();
}

std::optional<ApiError> ServedModel::check_name(std::string_view name) const {
  if (has_name(name)) return std::nullopt;
  if (any_name_) {
    return bad_parameter("model", fmt::format("'model': must have at most {} bytes, not {}",
                                              kNameBytesMax, name.size()));
  }
  return ApiError{
      .status = 404,
      .message = fmt::format("The model '{:.200}' does not exist; this server serves {}", name,
                             fmt::join(names_, ", ")),
      .parameter = "model",
      .code = "model_not_found"};
}

std::optional<ApiError> ServedModel::resolve_name(std::optional<std::string>& name) const {
  if (!name) name = names_.front();
  return check_name(*name);
}

void ServedModel::note_general_tools() const {
  if (general_tools_noted_.exchange(true)) return;
  spdlog::warn(
      "the chat template of {} knows no tools, or writes calls in a way that is not known here: "
      "they are written into the messages in a general form, which it may not have been trained on",
      engine_.model().name);
}

// A follower is well, and still no one to ask.
std::optional<ApiError> ServedModel::follows() const {
  const auto leader = engine_.leader();
  if (!leader) return std::nullopt;
  return not_now("follows_another_host",
                 fmt::format("This host computes for {}; ask that one", *leader),
                 kRetryWhenDrainingSeconds);
}

std::optional<ApiError> ServedModel::check_ready() const {
  auto reason = unready();
  if (!reason) return follows();
  const ServingState now = state();
  if (health() == EngineHealth::kFailed) {
    engine_.count_rejected(Rejection::kFailed);
    return reason;
  }
  if (now == ServingState::kLoading) engine_.count_rejected(Rejection::kLoading);
  if (now == ServingState::kDraining) engine_.count_rejected(Rejection::kDraining);
  return reason;
}

std::optional<ApiError> ServedModel::check_queue(const std::string& tenant) const {
  if (const auto space = engine_.check_queue(tenant); !space) return to_api_error(space.error());
  return std::nullopt;
}

void ServedModel::set_health(EngineHealth health) {
  EngineHealth before = health_.load(std::memory_order_relaxed);
  while (before != EngineHealth::kFailed &&
         !health_.compare_exchange_weak(before, health, std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
}

std::optional<ApiError> ServedModel::unready() const {
  if (health() == EngineHealth::kFailed) return failed();
  switch (state()) {
    case ServingState::kReady:
      if (health() == EngineHealth::kStalled) return stalled();
      return std::nullopt;
    case ServingState::kDraining:
      return not_now("shutting_down", "The server is shutting down; ask another one, or later",
                     kRetryWhenDrainingSeconds);
    case ServingState::kLoading:
      break;
  }
  const LoadProgress progress = engine_.statistics().load;
  const double ratio = progress.bytes_total == 0 ? 0
                                                 : static_cast<double>(progress.bytes_done) /
                                                       static_cast<double>(progress.bytes_total);
  return not_now("model_loading",
                 fmt::format("The model is loading ({:.0f}% done); try again soon", ratio * 100),
                 seconds_until_loaded(progress));
}

std::optional<ApiError> ServedModel::check_health() const {
  if (auto reason = unready()) return reason;
  if (health() != EngineHealth::kFine) return stalled();
  if (!engine_.hosts_are_together()) {
    return not_now("hosts_lost",
                   "A host that computes the model together with this one has been lost; this one "
                   "waits for a new group",
                   1);
  }
  if (engine_.output_is_damaged()) return damaged();
  return std::nullopt;
}

ApiError ServedModel::to_api_error(const Error& error) const {
  switch (error.kind) {
    case ErrorKind::kInvalidInput:
      return bad_request(error.message);
    case ErrorKind::kMachineRefused:
      return server_error(error.message);
    case ErrorKind::kUnavailable:
      break;
  }
  // The engine has counted it.
  if (auto not_ready = unready()) return *not_ready;
  if (auto other = follows()) return *other;
  return not_now("queue_full", error.message, error.retry_after_seconds.value_or(1));
}

int seconds_until_loaded(const LoadProgress& progress) {
  if (progress.bytes_done == 0 || progress.bytes_total <= progress.bytes_done) return 1;
  const double left = static_cast<double>(progress.bytes_total - progress.bytes_done);
  const double seconds = progress.seconds * left / static_cast<double>(progress.bytes_done);
  return static_cast<int>(
      std::ceil(std::clamp(seconds, 1.0, static_cast<double>(kRetryWhileLoadingSecondsMax))));
}

}  // namespace lockstep
