#include "engine/measure/evaluation.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/machine/memory_budget.h"
#include "engine/machine/node_memory.h"

namespace lockstep {
namespace {

// Mean and standard error of numbers that come one by one (Welford's algorithm).
class RunningMean {
 public:
  void add(double value) {
    ++count_;
    const double distance = value - mean_;
    mean_ += distance / static_cast<double>(count_);
    squares_ += distance * (value - mean_);
  }
  Estimate estimate() const {
    if (count_ < 2) return {mean_, 0};
    const auto count = static_cast<double>(count_);
    return {mean_, std::sqrt(squares_ / (count - 1) / count)};
  }

 private:
  uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // summed squared distances from the mean
};

// The distribution that logits stand for: p(i) = exp(logits[i] - maximum) / sum.
struct Distribution {
  std::span<const float> logits;
  double maximum = 0;
  double log_sum = 0;
  size_t top = 0;  // of equal ones the first

  explicit Distribution(std::span<const float> given) : logits(given) {
    top = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
    maximum = static_cast<double>(logits[top]);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - maximum);
    log_sum = std::log(sum);
  }

  bool is_usable() const {
    return std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
  }
  double log_probability(size_t token) const {
    return static_cast<double>(logits[token]) - maximum - log_sum;
  }
};

double divergence(const Distribution& reference, const Distribution& model) {
  double sum = 0;
  for (size_t token = 0; token < reference.logits.size(); ++token) {
    const double log_probability = reference.log_probability(token);
    sum += std::exp(log_probability) * (log_probability - model.log_probability(token));
  }
  return sum;
}

Estimate perplexity_of(const Estimate& log_loss) {
  const double perplexity = std::exp(log_loss.mean);
  return {perplexity, perplexity * log_loss.error};
}

class Score {
 public:
  void add(const Distribution& model, TokenId next) {
    log_loss_.add(-model.log_probability(static_cast<size_t>(next)));
    ++count_;
  }
  void add(const Distribution& reference, const Distribution& model, TokenId next) {
    add(model, next);
    const auto token = static_cast<size_t>(next);
    reference_log_loss_.add(-reference.log_probability(token));
    log_ratio_.add(reference.log_probability(token) - model.log_probability(token));
    agreement_.add(reference.top == model.top ? 1 : 0);
    divergences_.push_back(divergence(reference, model));
    divergence_.add(divergences_.back());
  }

  // Fills in the figures of all that was added, not the sizes of the text.
  void fill(Evaluation& evaluation) {
    evaluation.scored_tokens = count_;
    evaluation.log_loss = log_loss_.estimate();
    evaluation.perplexity = perplexity_of(evaluation.log_loss);
    if (divergences_.empty()) return;
    std::ranges::sort(divergences_);
    evaluation.comparison = {.perplexity = perplexity_of(reference_log_loss_.estimate()),
                             .log_ratio = log_ratio_.estimate(),
                             .divergence = divergence_.estimate(),
                             .divergence_median = percentile(0.5),
                             .divergence_90 = percentile(0.9),
                             .divergence_99 = percentile(0.99),
                             .divergence_max = divergences_.back(),
                             .top_agreement = agreement_.estimate()};
  }

 private:
  // The least divergence that so large a share of all does not exceed.
  double percentile(double share) const {
    const double rank = std::ceil(share * static_cast<double>(divergences_.size()));
    return divergences_[static_cast<size_t>(rank) - 1];
  }

  uint64_t count_ = 0;
  RunningMean log_loss_;
  RunningMean reference_log_loss_;
  RunningMean log_ratio_;
  RunningMean divergence_;
  RunningMean agreement_;
  std::vector<double> divergences_;
};

Result<void> check_vocabularies(const LogitSource& model, const LogitSource& reference) {
  const Tokenizer& ours = model.tokenizer();
  const Tokenizer& theirs = reference.tokenizer();
  if (model.model().vocabulary_size != reference.model().vocabulary_size ||
      ours.vocabulary_size() != theirs.vocabulary_size()) {
    return invalid_input(
        "the vocabularies differ: the model has {} tokens, the reference {}; give the reference "
        "that the model was made of",
        ours.vocabulary_size(), theirs.vocabulary_size());
  }
  for (size_t index = 0; index < ours.vocabulary_size(); ++index) {
    const auto token = static_cast<TokenId>(index);
    if (ours.token_text(token) == theirs.token_text(token)) continue;
    return invalid_input(
        "the vocabularies differ: token {} is \"{}\" in the model, \"{}\" in the reference; give "
        "the reference that the model was made of",
        token, ours.token_text(token), theirs.token_text(token));
  }
  return {};
}

class Evaluator {
 public:
  Evaluator(LogitSource& model, LogitSource* reference, const EvaluationOptions& options)
      : model_(model),
        reference_(reference),
        options_(options),
        first_(options.context_tokens / 2),
        scored_(options.context_tokens - 1 - first_) {}

  // Chunks side by side, all of one length.
  Result<void> add(std::span<const std::vector<TokenId>> chunks) {
    LogitsCase wanted{.sequences = {}, .first = first_, .generated = options_.generated};
    // Nothing comes after the last token that could be scored.
    for (const auto& chunk : chunks) {
      wanted.sequences.push_back(std::span(chunk).first(chunk.size() - 1));
    }
    if (auto done = compute_reference(wanted); !done) return done;
    auto computed = model_.compute_logits(
        wanted, [&](size_t sequence, size_t position, std::span<const float> logits) {
          score(sequence, position, chunks[sequence][position + 1], logits);
        });
    if (!computed) return computed;
    if (unusable_ == nullptr) return {};
    return machine_refused("{}: the output holds no usable numbers (NaN or infinity)",
                           unusable_->model().name);
  }

  Score& result() { return score_; }

 private:
  // Keeps the reference's logits of all scored positions.
  Result<void> compute_reference(const LogitsCase& wanted) {
    if (reference_ == nullptr) return {};
    const size_t width = reference_->model().vocabulary_size;
    rows_.resize(wanted.sequences.size() * scored_ * width);
    return reference_->compute_logits(
        wanted, [&](size_t sequence, size_t position, std::span<const float> logits) {
          std::ranges::copy(logits, reference_row(sequence, position).begin());
        });
  }

  std::span<float> reference_row(size_t sequence, size_t position) {
    const size_t width = reference_->model().vocabulary_size;
    return std::span(rows_).subspan((sequence * scored_ + position - first_) * width, width);
  }

  void score(size_t sequence, size_t position, TokenId next, std::span<const float> logits) {
    const Distribution found(logits);
    if (!found.is_usable()) unusable_ = &model_;
    if (reference_ == nullptr) return score_.add(found, next);
    const Distribution expected(reference_row(sequence, position));
    if (!expected.is_usable()) unusable_ = reference_;
    score_.add(expected, found, next);
  }

  LogitSource& model_;
  LogitSource* reference_;
  const EvaluationOptions& options_;
  const size_t first_;       // position that is scored first
  const size_t scored_;      // positions of a chunk that are
  std::vector<float> rows_;  // [chunk][scored position][vocabulary], of the reference
  LogitSource* unusable_ = nullptr;
  Score score_;
};

// The text's chunks, each begun as the vocabulary begins a text.
std::vector<std::vector<TokenId>> cut_chunks(const Tokenizer& tokenizer,
                                             std::span<const TokenId> tokens, size_t length,
                                             size_t count) {
  std::vector<std::vector<TokenId>> chunks;
  for (size_t index = 0; index < count; ++index) {
    const auto chunk = tokens.subspan(index * length, length);
    chunks.emplace_back(chunk.begin(), chunk.end());
    if (tokenizer.adds_bos() && tokenizer.bos()) chunks.back()[0] = *tokenizer.bos();
  }
  return chunks;
}

}  // namespace

Result<void> check_evaluation(const LogitSource& model, const LogitSource* reference,
                              std::span<const TokenId> tokens, const EvaluationOptions& options) {
  constexpr uint32_t kLeastContext = 4;
  if (options.context_tokens < kLeastContext) {
    return invalid_input("a context of {} tokens leaves nothing to score; give {} or more",
                         options.context_tokens, kLeastContext);
  }
  if (tokens.size() < options.context_tokens) {
    return invalid_input(
        "the text has {} tokens, too few for one chunk of {}; give a longer text or a smaller "
        "context",
        tokens.size(), options.context_tokens);
  }
  if (reference == nullptr) return {};
  if (auto same = check_vocabularies(model, *reference); !same) return same;
  // The reference's logits of every scored token that is computed side by side are held.
  const uint64_t side_by_side = options.generated ? std::max(options.side_by_side, 1U) : 1;
  const uint64_t bytes = side_by_side * (options.context_tokens / 2) *
                         reference->model().vocabulary_size * sizeof(float);
  const uint64_t available = available_memory_bytes();
  if (bytes <= available / 2) return {};
  return machine_refused(
      "the reference's logits of {} tokens take {} MiB and {} MiB of memory are available; give a "
      "smaller --context{}",
      side_by_side * (options.context_tokens / 2), bytes >> 20U, available >> 20U,
      side_by_side > 1 ? " or fewer --sequences" : "");
}

Result<Evaluation> evaluate(LogitSource& model, LogitSource* reference,
                            std::span<const TokenId> tokens, const EvaluationOptions& options) {
  if (auto possible = check_evaluation(model, reference, tokens, options); !possible) {
    return std::unexpected(possible.error());
  }
  const size_t whole = tokens.size() / options.context_tokens;
  const size_t count =
      options.chunk_count == 0 ? whole : std::min<size_t>(whole, options.chunk_count);
  const auto chunks = cut_chunks(model.tokenizer(), tokens, options.context_tokens, count);
  Evaluator evaluator(model, reference, options);
  const size_t group = options.generated ? std::max<size_t>(options.side_by_side, 1) : 1;
  for (size_t done = 0; done < count; done += group) {
    const auto some = std::span(chunks).subspan(done, std::min(group, count - done));
    if (auto added = evaluator.add(some); !added) return std::unexpected(added.error());
    if (options.on_chunks) {
      options.on_chunks(static_cast<uint32_t>(done + some.size()), static_cast<uint32_t>(count));
    }
  }
  Evaluation evaluation;
  evaluation.text_tokens = tokens.size();
  evaluation.chunk_count = static_cast<uint32_t>(count);
  evaluator.result().fill(evaluation);
  return evaluation;
}

}  // namespace lockstep
