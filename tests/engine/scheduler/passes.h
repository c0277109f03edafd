// A scheduler and its passes, for tests that say who does what in which pass.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduler/scheduler.h"

namespace lockstep {

inline SchedulerLimits small_limits() {
  SchedulerLimits limits;
  limits.page_tokens = 4;
  limits.page_count = 12;
  limits.sequence_count = 3;
  limits.batch_tokens = 16;
  limits.logit_rows = 5;
  return limits;
}

// A scheduler, and what the tests need to speak of it in few words.
class Passes {
 public:
  explicit Passes(const SchedulerLimits& limits, size_t beside_streams = 4) : scheduler(limits) {
    scheduler.limit_prompt_tokens({limits.batch_tokens, beside_streams});
  }

  // Prompts differ from their first token on, unless `first_token` is given.
  SequenceId add(size_t prompt, size_t most_tokens, NewSequence asked = {},
                 std::optional<int32_t> first_token = {}) {
    const int32_t first = first_token.value_or(next_token_);
    next_token_ += 1000;
    for (size_t token = 0; token < prompt; ++token) {
      asked.prompt.push_back(first + static_cast<int32_t>(token));
    }
    asked.most_tokens = most_tokens + 1;  // one is sampled and not computed
    return scheduler.add(std::move(asked), now);
  }

  const Schedule& next() { return scheduler.next_batch(now); }

  // One whole pass: each that is to be sampled gets a token, and ends with its last one.
  std::map<SequenceId, Chunk> pass() {
    std::map<SequenceId, Chunk> chunks;
    const Schedule& schedule = next();
    for (const Chunk& chunk : schedule.chunks) chunks[chunk.sequence] = chunk;
    copies = schedule.state_copies;
    checkpoints.clear();
    for (const auto& [id, chunk] : chunks) {
      for (const SlotBehind& kept : scheduler.new_checkpoints(id)) {
        checkpoints[id].push_back(kept.tokens);
      }
    }
    ++passes;
    if (chunks.empty()) return chunks;
    scheduler.computed();
    for (const auto& [id, chunk] : chunks) {
      if (!chunk.sample) continue;
      if (!first_sampled.contains(id)) first_sampled[id] = passes;
      if (const auto found = most.find(id); found != most.end() && --found->second == 0) {
        scheduler.finish(id);
      } else {
        scheduler.append_token(id, 7);
      }
    }
    return chunks;
  }

  // The pages that it holds of a group.
  std::span<const uint32_t> pages(SequenceId sequence, size_t group = 0) const {
    const auto tables = scheduler.tables(sequence);
    return tables.empty() ? std::span<const uint32_t>() : tables[group].held();
  }

  Scheduler scheduler;
  double now = 0;
  size_t passes = 0;
  std::vector<SlotCopy> copies;  // of the last pass
  // The tokens behind which the last pass has left checkpoints.
  std::map<SequenceId, std::vector<size_t>> checkpoints;
  std::map<SequenceId, size_t> most;           // passes that sample, until it ends
  std::map<SequenceId, size_t> first_sampled;  // the pass

 private:
  int32_t next_token_ = 0;
};

// With an API key, whose owner's pages are its own.
inline NewSequence of_tenant(const std::string& tenant, int32_t priority = 0) {
  NewSequence asked;
  asked.tenant = tenant;
  asked.scope.owner = tenant;
  asked.priority = priority;
  return asked;
}

// Without keys: pages are everybody's.
inline NewSequence of_site(const std::string& site) {
  NewSequence asked;
  asked.tenant = site;
  return asked;
}

}  // namespace lockstep
