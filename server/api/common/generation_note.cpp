#include "server/api/common/generation_note.h"

#include <algorithm>

namespace lockstep {
namespace {

double seconds(GenerationClock::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void GenerationClock::start(size_t requests, Clock::time_point now) {
  started_ = now;
  requests_.resize(requests);
}

void GenerationClock::observe(size_t index, uint32_t generated, Clock::time_point now) {
  Tokens& tokens = requests_[index];
  if (generated == tokens.generated) return;
  if (tokens.generated == 0) {
    tokens.first = now;
    tokens.first_count = generated;
  }
  if (!first_) first_ = now;
  tokens.generated = generated;
  tokens.last = now;
}

void GenerationClock::observe_queue(double seconds) {
  queue_seconds_ = std::min(seconds, queue_seconds_.value_or(seconds));
}

void GenerationClock::fill(GenerationNote& note) const {
  note.queue_seconds = queue_seconds_;
  if (first_) note.first_token_seconds = seconds(*first_ - started_);
  double generating_seconds = 0;
  uint64_t later_tokens = 0;
  for (const Tokens& tokens : requests_) {
    generating_seconds += seconds(tokens.last - tokens.first);
    later_tokens += tokens.generated - tokens.first_count;
  }
  if (later_tokens > 0) {
    note.per_token_seconds = generating_seconds / static_cast<double>(later_tokens);
  }
}

}  // namespace lockstep
