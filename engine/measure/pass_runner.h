// Sequences side by side, computed pass by pass without a scheduler and without sampling: what
// measurements and evaluations run. Uses the KV pages from the first on; nothing else may be
// running.
//
// Where passes have a deadline, which is where all ranks are GPUs, prompts are cut as they are when
// they are served: the first pass is small, the next ones are as large as what has been measured
// allows (throughput.h). No bit of a prompt depends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/operations/plan.h"
#include "engine/pass/batch.h"
#include "engine/runtime/executor.h"
#include "engine/serving/throughput.h"

namespace lockstep {

enum class TokenOrigin : uint8_t { kPrompted, kGenerated };

// In seconds, since whenever.
using PassClock = std::function<double()>;
double steady_seconds();

class PassRunner {
 public:
  // kInvalidInput with what to raise, unless so many sequences of so many tokens fit the plan.
  static Result<void> check_fit(const Plan& plan, size_t sequences, size_t tokens_each);

  // All must outlive this; what was checked must fit. `on_pass` is called after every pass with
  // what it computed; the executor holds its logits then.
  PassRunner(Executor& executor, const Plan& plan, size_t sequences, size_t tokens_each,
             std::function<void(const Batch&)> on_pass, PassClock clock = steady_seconds);
  PassRunner(const PassRunner&) = delete;
  PassRunner& operator=(const PassRunner&) = delete;

  // The next token of a sequence, and whether its logits are wanted. A pass that is full runs; so
  // does one of prompted tokens before a generated one is added.
  void add(size_t sequence, TokenId token, bool logits,
           TokenOrigin origin = TokenOrigin::kPrompted);
  // Computes what has been added, unless a pass has failed before.
  void run();
  // The first failure of all passes so far.
  const Result<void>& outcome() const { return outcome_; }
  // Keeps so many tokens of a sequence and forgets the others. The states of a model that has some
  // stay what they are, so that what comes after is measured and means nothing; but not after a
  // length of 0.
  void cut(size_t sequence, size_t length) { lengths_[sequence] = length; }

  // Counts so many tokens of a sequence as computed, which have zeros as keys and values unless
  // their pages were used before. Before its first token.
  void skip(size_t sequence, size_t length) { lengths_[sequence] = length; }

  // Passes so far that had space for a token that the next one got, but for the deadline.
  size_t shortened_passes() const { return shortened_passes_; }

  size_t sequence_count() const { return lengths_.size(); }
  size_t length(size_t sequence) const { return lengths_[sequence]; }

 private:
  void take_pages(size_t tokens_each);
  void start_pass();
  bool has_time_for(double work) const;

  Executor& executor_;
  const Plan& plan_;
  const std::function<void(const Batch&)> on_pass_;
  std::vector<size_t> lengths_;                // by sequence, as the next three
  std::vector<std::vector<uint32_t>> tables_;  // [sequence][group]
  size_t page_count_ = 0;                      // that they use
  Batch batch_;
  const PassClock clock_;
  std::optional<Throughput> throughput_;  // where passes have a deadline
  PromptAllowance prompts_most_;          // of the pass at hand, there
  PassTokens pass_tokens_;
  size_t shortened_passes_ = 0;
  Result<void> outcome_;
};

}  // namespace lockstep
