#include "server/api/common/answer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/log.h"
#include "server/api/common/generation_note.h"
#include "server/api/common/outputs.h"
#include "server/api/common/prepare_request.h"

namespace lockstep {
namespace {

// How long a stream may be silent; proxies cut connections that are silent for a minute.
constexpr std::chrono::milliseconds kKeepAlive{15'000};
// The bytes that the engine may have made of a stream and its client cannot take yet, beside what
// the connection itself may owe: some thousand tokens with 20 alternatives each.
constexpr size_t kStreamBytesMax = 8 * 1024 * 1024;

// A whole answer is bounded before it begins, by check_answer(): all that comes of it is kept.
constexpr size_t kWholeBytesMax = std::numeric_limits<size_t>::max();

constexpr int kRetryWhenDisplacedSeconds = 5;

// A client's fault that showed only while the answer was made.
ApiError impossible_answer(const std::string& constraint, const std::string& why) {
  ApiError error = bad_request("The answer cannot go on: " + why);
  if (!constraint.empty()) error.parameter = constraint;
  error.code = "impossible_answer";
  return error;
}

// The requests of one answer while they run.
class Run {
 public:
  // The call's key is charged at the end, whatever that is. `queue_bytes`: what the engine may be
  // ahead of this.
  Run(Call& call, AnswerPlan& plan, size_t queue_bytes)
      : model_(call.model),
        plan_(plan),
        response_(call.response),
        key_(call.key),
        queue_(std::make_shared<OutputQueue>(queue_bytes)) {
    for (size_t index = 0; index < plan.requests.size(); index += plan.choices) {
      prompt_tokens_ += plan.requests[index].prompt.size();
    }
  }

  // Nothing goes on without its answer, not even when writing it has failed with an exception.
  ~Run() {
    queue_->on_break({});
    if (ids_.empty()) return;
    settle();
    if (unfinished()) cancel();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Submits all requests, or none.
  ApiResult<void> start() {
    clock_.start(plan_.requests.size());
    const bool has_slot = note_conversation();
    generated_.resize(plan_.requests.size());
    cached_.resize(plan_.requests.size());
    drafted_.resize(plan_.requests.size());
    reasoning_.resize(plan_.requests.size(), plan_.reasoning);
    for (size_t index = 0; index < plan_.requests.size(); ++index) {
      Request& request = plan_.requests[index];
      is_predicted_ = request.prediction != nullptr;
      // The queue is shared: the engine may say a last word after the answer has been given up.
      request.on_output = [queue = queue_, index](Output&& output) {
        queue->push(index, std::move(output));
      };
    }
    auto ids = model_.engine().submit_all(std::move(plan_.requests));
    if (!ids) return std::unexpected(model_.to_api_error(ids.error()));
    ids_ = std::move(*ids);
    if (has_slot) {
      model_.conversations().begin(owner_, *plan_.slot);
      is_kept_ = true;
    }
    response_.on_client_gone([&engine = model_.engine(), ids = ids_] {
      for (const RequestId id : ids) engine.cancel(id);
    });
    queue_->on_break([this, &engine = model_.engine()](OutputQueue::Break why) {
      if (why == OutputQueue::Break::kFull) response_.cut_too_slow();
      for (const RequestId id : ids_) engine.cancel(id);
    });
    return {};
  }

  ApiResult<void> give_whole(BodyWriter& writer) {
    std::vector<Output> whole(ids_.size());
    while (unfinished() && !failure_) {
      for (auto& event : queue_->wait(kKeepAlive)) {
        note(event);
        append_output(whole[event.index], std::move(event.output));
      }
      note_break();
    }
    if (failure_) {
      cancel();
      settle();
      // A client that has left gets nothing, so that the log can tell it from one that was cut.
      if (response_.client_gone()) return {};
      return std::unexpected(*failure_);
    }
    settle();
    response_.send(200, "application/json", writer.body(whole, usage()));
    return {};
  }

  ApiResult<void> give_stream(StreamWriter& writer) {
    response_.set_header("Cache-Control", "no-cache");
    response_.set_header("X-Accel-Buffering", "no");  // or nginx would collect the stream
    bool there = response_.start_stream(200, "text/event-stream; charset=utf-8");
    there = there && tell(writer.opening(usage()));
    while (there && unfinished() && !failure_) there = tell(next_part(writer));
    note_break();
    if (!there || failure_) cancel();
    settle();
    if (there) tell(failure_ ? writer.failure(*failure_) : writer.ending(usage()));
    return {};
  }

  // Charges the key, and gives the slot its conversation, before the client has the end of its
  // answer.
  void settle() noexcept {
    if (std::exchange(is_kept_, false)) {
      model_.conversations().end(owner_, *plan_.slot,
                                 has_conversation() ? &conversation_ : nullptr);
    }
    key_.set_used_tokens(prompt_tokens_ + generated_tokens());
    key_.end();
  }

  GenerationNote summary() const {
    GenerationNote note{.prompt_tokens = prompt_tokens_, .finish = finish_};
    // A prompt was computed unless every choice has found it.
    for (size_t first = 0; first < cached_.size(); first += plan_.choices) {
      const auto begin = cached_.begin() + static_cast<std::ptrdiff_t>(first);
      note.cached_tokens +=
          *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(plan_.choices));
    }
    note.generated_tokens = generated_tokens();
    clock_.fill(note);
    return note;
  }

 private:
  // Tokens that were drafted.
  struct Drafted {
    uint32_t accepted = 0;
    uint32_t rejected = 0;
  };

  // Notes the prompt of the first request, which the engine is about to get; false where no slot
  // keeps it.
  bool note_conversation() {
    if (!plan_.slot || !model_.keeps_conversations()) return false;
    const Request& first = plan_.requests.front();
    owner_ = first.cache_owner;
    // Longer answers are rare enough to have the tokens moved.
    constexpr size_t kReservedMost = 256;
    auto& tokens = conversation_.tokens;
    tokens.reserve(first.prompt.size() + std::min<size_t>(first.max_tokens, kReservedMost));
    tokens = first.prompt;
    conversation_.cache_salt = first.cache_salt;
    return true;
  }

  // Whether the slot gets this conversation. Where the request has failed, it does not; one whose
  // client has left has its answer as far as it was made.
  bool has_conversation() const noexcept {
    if (!failure_ && !unfinished()) return true;
    return response_.client_gone() && generated_[0] > 0;
  }

  bool unfinished() const { return finished_ < ids_.size(); }

  // By value: nothing of a part is held while the next one is waited for.
  bool tell(std::string part) { return part.empty() || response_.write(std::move(part)); }

  std::string next_part(StreamWriter& writer) {
    const auto events = queue_->wait(kKeepAlive);
    std::string text;
    for (const auto& event : events) {
      note(event);
      if (failure_) break;
      text += writer.news(event.index, event.output);
    }
    note_break();
    if (events.empty() && !failure_) return writer.keep_alive();
    return text;
  }

  uint64_t generated_tokens() const {
    return std::accumulate(generated_.begin(), generated_.end(), uint64_t{0});
  }

  void cancel() noexcept {
    for (const RequestId id : ids_) model_.engine().cancel(id);
    if (finish_.empty()) finish_ = "cancelled";
  }

  // The engine's news are lost from here on.
  void note_break() {
    switch (queue_->broken()) {
      case OutputQueue::Break::kNone:
        return;
      case OutputQueue::Break::kFull:
        finish_ = "too_slow";
        failure_ = not_now("client_too_slow",
                           "The client takes the stream more slowly than it is made: read faster, "
                           "or ask for fewer choices or logprobs",
                           1);
        return;
      case OutputQueue::Break::kNoMemory:
        finish_ = "no_memory";
        failure_ =
            not_now("no_memory", "The server has no memory for the answer: try again later", 5);
        return;
    }
  }

  void note(const OutputQueue::Event& event) {
    const Output& output = event.output;
    clock_.observe(event.index, output.generated_tokens);
    if (is_kept_ && event.index == 0) {
      for (const OutputToken& token : output.tokens) conversation_.tokens.push_back(token.token);
    }
    if (output.queue_seconds) clock_.observe_queue(*output.queue_seconds);
    generated_[event.index] = output.generated_tokens;
    cached_[event.index] = output.cached_tokens;
    drafted_[event.index] = {output.accepted_draft_tokens, output.rejected_draft_tokens};
    reasoning_[event.index].add(output);
    if (!output.finish) return;
    ++finished_;
    finish_ = finish_name(*output.finish);
    if (*output.finish == FinishReason::kCancelled) {
      failure_ = not_now("shutting_down", "The server shut down before the answer was complete", 5);
    } else if (*output.finish == FinishReason::kDeadline) {
      failure_ = deadline_exceeded();
    } else if (*output.finish == FinishReason::kDisplaced) {
      failure_ = not_now("queue_full",
                         "The queue is full and this request was above its sender's share of it; "
                         "send fewer at once, or try again later",
                         kRetryWhenDisplacedSeconds);
    } else if (*output.finish == FinishReason::kError) {
      failure_ = server_error(output.error);
    } else if (*output.finish == FinishReason::kInvalidRequest) {
      failure_ = impossible_answer(plan_.constraint, output.error);
    }
  }

  AnswerUsage usage() const {
    const GenerationNote note = summary();
    AnswerUsage usage{.prompt_tokens = note.prompt_tokens,
                      .cached_tokens = note.cached_tokens,
                      .generated_tokens = note.generated_tokens};
    for (const ReasoningCount& reasoning : reasoning_) usage.reasoning_tokens += reasoning.tokens();
    for (const Drafted& drafted : drafted_) {
      // Without a prediction they are the engine's own matter, and depend on what passes take.
      if (!is_predicted_) break;
      usage.accepted_draft_tokens += drafted.accepted;
      usage.rejected_draft_tokens += drafted.rejected;
    }
    return usage;
  }

  ServedModel& model_;
  AnswerPlan& plan_;
  HttpResponse& response_;
  KeyLease& key_;
  std::shared_ptr<OutputQueue> queue_;
  std::vector<RequestId> ids_;
  std::vector<uint32_t> generated_;        // tokens so far, by request
  std::vector<uint32_t> cached_;           // of the prompt, by request
  std::vector<Drafted> drafted_;           // so far, by request
  bool is_predicted_ = false;              // the client has given a prediction
  std::vector<ReasoningCount> reasoning_;  // by request
  uint64_t prompt_tokens_ = 0;             // each prompt counted once
  bool is_kept_ = false;                   // in plan_.slot, when it ends
  std::string owner_;                      // of the slot
  Conversation conversation_;              // so far
  GenerationClock clock_;
  size_t finished_ = 0;
  std::string_view finish_;
  std::optional<ApiError> failure_;
};

// Reserves what the plan needs, submits it, and has `give` make the answer of what comes.
template <typename Give>
ApiResult<void> run_plan(Call& call, AnswerPlan plan, size_t queue_bytes, const Give& give) {
  // The plan and the writer hold what is left of the body: from here on the request waits for the
  // engine and for its client.
  if (!call.model.logs_prompts()) call.response.release_body(plan.kept_bytes);
  for (Request& part : plan.requests) {
    part.id = call.request.request_id;
    part.tenant = call.request.tenant;
  }
  if (auto reserved = call.key.reserve(plan.choices, plan.requests, call.response); !reserved) {
    return reserved;
  }
  Run run(call, plan, queue_bytes);
  if (auto started = run.start(); !started) return started;
  auto given = give(run);
  call.note = run.summary();
  if (call.model.logs_prompts()) call.note->body = call.request.body;
  return given;
}

}  // namespace

ApiResult<void> answer_whole(Call& call, AnswerPlan plan, BodyWriter& writer) {
  return run_plan(call, std::move(plan), kWholeBytesMax,
                  [&](Run& run) { return run.give_whole(writer); });
}

ApiResult<void> answer_stream(Call& call, AnswerPlan plan, StreamWriter& writer) {
  return run_plan(call, std::move(plan), kStreamBytesMax,
                  [&](Run& run) { return run.give_stream(writer); });
}

}  // namespace lockstep
