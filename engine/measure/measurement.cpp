#include "engine/measure/measurement.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

class Measurer {
 public:
  Measurer(Executor& executor, const Plan& plan, const ModelWork& work, size_t sequences,
           size_t tokens_each, const PassClock& clock)
      : vocabulary_size_(plan.vocabulary_size),
        clock_(clock),
        runner_(
            executor, plan, sequences, tokens_each,
            [this, &work](const Batch& batch) { work.add(batch, work_); }, clock) {}

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

  // Prompts of so many tokens, until they are computed in no fewer passes than before.
  void settle(size_t count) {
    const size_t begin = runner_.length(0);
    size_t before = std::numeric_limits<size_t>::max();
    while (outcome()) {
      const size_t shortened = prompt(count).shortened_passes;
      go_back_to(begin);
      if (shortened == 0 || shortened >= std::exchange(before, shortened)) return;
    }
  }

  // Runs so many passes, each of one token of every sequence.
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

  void skip(size_t length) {
    for (size_t sequence = 0; sequence < runner_.sequence_count(); ++sequence) {
      runner_.skip(sequence, length);
    }
  }

  void go_back_to(size_t length) {
    for (size_t sequence = 0; sequence < runner_.sequence_count(); ++sequence) {
      runner_.cut(sequence, length);
    }
  }

 private:
  template <typename Passes>
  MeasuredWork timed(const Passes& passes) {
    work_ = {};
    const size_t shortened = runner_.shortened_passes();
    const double start = clock_();
    passes();
    work_.seconds = clock_() - start;
    work_.shortened_passes = runner_.shortened_passes() - shortened;
    return work_;
  }

  void add(size_t sequence, bool logits, TokenOrigin origin = TokenOrigin::kPrompted) {
    // Any spread of tokens will do; 7919 is prime, so neighbours differ.
    const size_t token = (runner_.length(sequence) * 7919 + sequence) % vocabulary_size_;
    runner_.add(sequence, static_cast<TokenId>(token), logits, origin);
  }

  size_t vocabulary_size_;
  const PassClock clock_;
  MeasuredWork work_;
  PassRunner runner_;
};

}  // namespace

Result<std::vector<Measurement>> run_measurement(Executor& executor, const Plan& plan,
                                                 const ModelWork& work,
                                                 const MeasurementCase& measurement,
                                                 const PassClock& clock) {
  const size_t tokens = static_cast<size_t>(measurement.depth_tokens) + measurement.prompt_tokens +
                        measurement.generated_tokens;
  if (auto fits = PassRunner::check_fit(plan, measurement.sequences, tokens); !fits) {
    return std::unexpected(fits.error());
  }
  Measurer measurer(executor, plan, work, measurement.sequences, tokens, clock);
  if (measurement.zero_depth) {
    measurer.skip(measurement.depth_tokens);
  } else {
    measurer.prompt(measurement.depth_tokens);
  }
  if (executor.pass_deadline()) measurer.settle(measurement.prompt_tokens);
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
