#include "engine/measurement.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/pass_runner.h"

namespace lockstep {
namespace {

class Measurer {
 public:
  Measurer(Executor& executor, const Plan& plan, const ModelWork& work, size_t sequences,
           size_t tokens_each)
      : vocabulary_size_(plan.vocabulary_size),
        runner_(executor, plan, sequences, tokens_each,
                [this, &work](const Batch& batch) { work.add(batch, work_); }) {}

  // `count` more tokens of every sequence, in passes as full as they may be; the logits of each
  // sequence's last token are computed, as a request would want them.
  MeasuredWork prompt(size_t count) {
    return timed([&] {
      for (size_t sequence = 0; sequence < runner_.sequence_count(); ++sequence) {
        for (size_t index = 0; index < count; ++index) add(sequence, index + 1 == count);
      }
      runner_.run();
    });
  }

  // So many passes, each of one token of every sequence.
  MeasuredWork generate(size_t count) {
    return timed([&] {
      for (size_t pass = 0; pass < count; ++pass) {
        for (size_t sequence = 0; sequence < runner_.sequence_count(); ++sequence) {
          add(sequence, true, TokenOrigin::kGenerated);
        }
        runner_.run();
      }
    });
  }

  const Result<void>& outcome() const { return runner_.outcome(); }

  void go_back_to(size_t length) {
    for (size_t sequence = 0; sequence < runner_.sequence_count(); ++sequence) {
      runner_.cut(sequence, length);
    }
  }

 private:
  template <typename Passes>
  MeasuredWork timed(const Passes& passes) {
    work_ = {};
    const auto start = std::chrono::steady_clock::now();
    passes();
    work_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return work_;
  }

  void add(size_t sequence, bool logits, TokenOrigin origin = TokenOrigin::kPrompted) {
    // Any spread of tokens will do; 7919 is prime, so neighbours differ.
    const size_t token = (runner_.length(sequence) * 7919 + sequence) % vocabulary_size_;
    runner_.add(sequence, static_cast<TokenId>(token), logits, origin);
  }

  size_t vocabulary_size_;
  MeasuredWork work_;
  PassRunner runner_;
};

}  // namespace

Result<std::vector<Measurement>> run_measurement(Executor& executor, const Plan& plan,
                                                 const ModelWork& work,
                                                 const MeasurementCase& measurement) {
  const size_t tokens = static_cast<size_t>(measurement.depth_tokens) + measurement.prompt_tokens +
                        measurement.generated_tokens;
  if (auto fits = PassRunner::check_fit(plan, measurement.sequences, tokens); !fits) {
    return std::unexpected(fits.error());
  }
  Measurer measurer(executor, plan, work, measurement.sequences, tokens);
  measurer.prompt(measurement.depth_tokens);
  std::vector<Measurement> results;
  for (uint32_t repeat = 0; repeat < measurement.repeats; ++repeat) {
    measurer.go_back_to(measurement.depth_tokens);
    Measurement result;
    result.prompt = measurer.prompt(measurement.prompt_tokens);
    result.generate = measurer.generate(measurement.generated_tokens);
    results.push_back(result);
    if (!measurer.outcome()) return std::unexpected(measurer.outcome().error());
  }
  return results;
}

Result<void> run_logits(Executor& executor, const Plan& plan, const LogitsCase& wanted,
                        const UseLogits& use) {
  const size_t count = wanted.sequences.size();
  const size_t length = count == 0 ? 0 : wanted.sequences[0].size();
  if (auto fits = PassRunner::check_fit(plan, count, length); !fits) return fits;
  Result<void> read;
  PassRunner runner(executor, plan, count, length, [&](const Batch& batch) {
    for (size_t row = 0; row < batch.logit_tokens.size() && read; ++row) {
      const BatchToken& token = batch.tokens[batch.logit_tokens[row]];
      const auto logits = executor.logits(row).all();
      if (logits) {
        use(token.sequence, token.position, *logits);
      } else {
        read = std::unexpected(logits.error());
      }
    }
  });
  const size_t prompted = wanted.generated ? std::min(wanted.first, length) : length;
  for (size_t sequence = 0; sequence < count; ++sequence) {
    for (size_t position = 0; position < prompted; ++position) {
      runner.add(sequence, wanted.sequences[sequence][position], position >= wanted.first);
    }
  }
  runner.run();
  for (size_t position = prompted; position < length; ++position) {
    for (size_t sequence = 0; sequence < count; ++sequence) {
      runner.add(sequence, wanted.sequences[sequence][position], true, TokenOrigin::kGenerated);
    }
    runner.run();
  }
  return runner.outcome() ? read : runner.outcome();
}

}  // namespace lockstep
