#include "engine/measurement.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

namespace lockstep {
namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Measurer {
 public:
  Measurer(Executor& executor, const Plan& plan, size_t sequences, size_t pages_each)
      : executor_(executor), plan_(plan), lengths_(sequences) {
    pages_.resize(sequences * pages_each);
    std::iota(pages_.begin(), pages_.end(), 0U);
    for (size_t sequence = 0; sequence < sequences; ++sequence) {
      tables_.push_back(std::span(pages_).subspan(sequence * pages_each, pages_each));
    }
    start_pass();
    batch_.cleared_pages = pages_;
  }

  // `count` more tokens of every sequence, in passes as full as they may be; the logits of each
  // sequence's last token are computed, as a request would want them.
  void add_prompts(size_t count) {
    for (size_t sequence = 0; sequence < lengths_.size(); ++sequence) {
      for (size_t index = 0; index < count; ++index) {
        add_token(sequence, index + 1 == count);
        if (batch_.tokens.size() == plan_.batch_tokens) run();
      }
    }
    run();
  }

  // One pass: one token of every sequence.
  void add_generated() {
    for (size_t sequence = 0; sequence < lengths_.size(); ++sequence) add_token(sequence, true);
    batch_.generated_tokens = batch_.tokens.size();
    run();
  }

 private:
  void start_pass() {
    batch_.clear();
    batch_.page_tables = tables_;
  }

  void add_token(size_t sequence, bool logits) {
    const size_t position = lengths_[sequence]++;
    if (logits && batch_.logit_tokens.size() < plan_.logit_rows) {
      batch_.logit_tokens.push_back(static_cast<uint32_t>(batch_.tokens.size()));
    }
    // Any spread of tokens will do; 7919 is prime, so neighbours differ.
    const size_t token = (position * 7919 + sequence) % plan_.vocabulary_size;
    batch_.tokens.push_back({.token = static_cast<TokenId>(token),
                             .position = static_cast<uint32_t>(position),
                             .sequence = static_cast<uint32_t>(sequence)});
  }

  void run() {
    if (batch_.tokens.empty()) return;
    executor_.run(batch_);
    start_pass();
  }

  Executor& executor_;
  const Plan& plan_;
  std::vector<size_t> lengths_;
  std::vector<uint32_t> pages_;
  std::vector<std::span<const uint32_t>> tables_;
  Batch batch_;
};

}  // namespace

Result<Measurement> run_measurement(Executor& executor, const Plan& plan,
                                    const MeasurementCase& measurement) {
  const size_t tokens = static_cast<size_t>(measurement.depth_tokens) + measurement.prompt_tokens +
                        measurement.generated_tokens;
  const size_t pages_each = (tokens + kPageTokens - 1) / kPageTokens;
  if (measurement.sequences == 0 || measurement.sequences > plan.logit_rows ||
      measurement.sequences > plan.batch_tokens ||
      pages_each * measurement.sequences > plan.kv.page_count) {
    return invalid_input(
        "{} sequences of {} tokens need {} KV pages of {} tokens; there are {}: raise --context or "
        "--sequences",
        measurement.sequences, tokens, pages_each * measurement.sequences, kPageTokens,
        plan.kv.page_count);
  }
  Measurer measurer(executor, plan, measurement.sequences, pages_each);
  measurer.add_prompts(measurement.depth_tokens);
  Measurement result;
  const Stopwatch prompt;
  measurer.add_prompts(measurement.prompt_tokens);
  result.prompt_seconds = prompt.seconds();
  const Stopwatch generate;
  for (size_t token = 0; token < measurement.generated_tokens; ++token) measurer.add_generated();
  result.generate_seconds = generate.seconds();
  return result;
}

}  // namespace lockstep
