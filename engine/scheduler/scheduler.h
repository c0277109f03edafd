// Decides which tokens the next pass computes. Knows sequences as lengths and pages as numbers; has
// no thread and no clock, so that it can be simulated from a seed.
//
// The rules: every sequence that generates gets its token in every pass; what is left of the pass
// goes to prompts, first come first served, cut into chunks. A sequence is admitted once all the
// pages it can ever need are promised to it; those waiting before it go first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "engine/scheduler/page_pool.h"

namespace lockstep {

using SequenceId = uint64_t;

struct SchedulerLimits {
  size_t page_tokens = 64;
  size_t page_count = 0;
  size_t sequence_count = 8;  // running at once
  size_t batch_tokens = 512;  // tokens of a pass
  // Prompt tokens of a pass in which others generate: what a running stream may be delayed by.
  size_t mixed_prompt_tokens = 128;
  size_t logit_rows = 64;  // rows whose logits one pass may give
};

// A stretch of one sequence that the next pass computes.
struct Chunk {
  SequenceId sequence = 0;
  size_t begin = 0;  // position of its first token
  size_t count = 0;
  bool first = false;   // the sequence's first chunk: it has left the queue
  bool sample = false;  // its last token is the sequence's last known: the next one is sampled
};

struct Schedule {
  std::vector<Chunk> chunks;
  std::vector<uint32_t> cleared_pages;  // handed out for this pass
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Pages that a sequence of so many tokens fills.
  size_t pages_for(size_t tokens) const;

  // Queues a sequence: `prompt_tokens` (at least 1) are known, `most_tokens` (at least as many) can
  // ever be computed; pages_for(most_tokens) must not exceed the pool. `all_logits`: the logits of
  // every prompt token are wanted, so its chunks are at most half of logit_rows long.
  SequenceId add(size_t prompt_tokens, size_t most_tokens, bool all_logits);

  // The next pass; empty when nothing can run. Until computed() is called with it, no other.
  const Schedule& next_batch();
  // The pass has been computed.
  void computed();

  // A token was sampled: one more is known. Only for a sequence whose known tokens are computed.
  void append_token(SequenceId sequence);
  // Ends a sequence, wherever it is; its pages are free again. Not between next_batch and computed.
  void finish(SequenceId sequence);

  std::span<const uint32_t> pages(SequenceId sequence) const;
  size_t running_count() const { return running_.size(); }
  size_t waiting_count() const { return waiting_.size(); }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  const PagePool& pool() const { return pool_; }

 private:
  struct Sequence {
    size_t known = 0;     // tokens: prompt and sampled
    size_t computed = 0;  // of them in the cache
    size_t prompt = 0;
    size_t most = 0;
    bool all_logits = false;
    size_t reserved = 0;  // pages promised and not taken
    std::vector<uint32_t> pages;

    bool generates() const { return computed >= prompt; }
  };

  void admit();
  static size_t rows_of(const Sequence& sequence, size_t count);
  size_t prompt_chunk(const Sequence& sequence, size_t tokens_left, size_t rows_left) const;
  void add_chunk(SequenceId id, Sequence& sequence, size_t count);

  SchedulerLimits limits_;
  PagePool pool_;
  std::map<SequenceId, Sequence> sequences_;
  std::deque<SequenceId> waiting_;   // first come first
  std::vector<SequenceId> running_;  // in order of admission
  Schedule schedule_;
  bool pass_open_ = false;
  SequenceId next_id_ = 1;
};

}  // namespace lockstep
