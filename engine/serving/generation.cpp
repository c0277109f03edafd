#include "engine/serving/generation.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {

Generation::Generation(RequestId id, Request request, const Tokenizer& tokenizer,
                       size_t vocabulary_size)
    : answers{.tenant = request.tenant, .owner = request.cache_owner, .salt = request.cache_salt},
      id_(id),
      request_(std::move(request)),
      tokenizer_(tokenizer),
      prompt_count_(request_.prompt.size()),
      tokens_(std::move(request_.prompt)),
      end_tokens_(tokenizer.end_tokens().begin(), tokenizer.end_tokens().end()),
      sampler_(request_.sampling, tokens_, vocabulary_size),
      stream_(tokenizer, request_.skip_special_tokens, /*at_start=*/false, request_.visible_tokens),
      stops_(request_.stop) {
  end_tokens_.insert(end_tokens_.end(), request_.stop_tokens.begin(), request_.stop_tokens.end());
  if (request_.grammar) matcher_.emplace(request_.grammar);
  if (request_.reasoning && !matcher_) reasoning_.emplace(std::move(*request_.reasoning));
  if (!wants_prompt_logits()) return;
  OutputToken first = describe(tokens_[0], {}, {});
  first.logprob = std::numeric_limits<float>::quiet_NaN();
  prompt_tokens_.push_back(std::move(first));
}

size_t Generation::most_computed_tokens() const {
  if (request_.embedding || request_.ranking) return prompt_count_;
  return prompt_count_ + std::max<size_t>(request_.max_tokens, 1) - 1;
}

void Generation::add_prompt_logits(size_t index, std::span<const float> logits) {
  if (index + 1 < prompt_count_) {
    prompt_tokens_.push_back(describe(tokens_[index + 1], logits, request_.prompt_logprobs));
  }
}

bool Generation::is_end(TokenId token) const {
  if (!request_.ignore_eos && tokenizer_.ends_generation(token)) return true;
  return std::ranges::find(request_.stop_tokens, token) != request_.stop_tokens.end();
}

OutputToken Generation::describe(TokenId token, std::span<const float> logits,
                                 std::optional<uint32_t> alternatives) const {
  OutputToken described;
  described.token = token;
  described.bytes = stream_.piece(token);
  if (alternatives) {
    LogprobResult result = compute_logprobs(logits, token, *alternatives);
    described.logprob = result.logprob;
    described.top = std::move(result.top);
  }
  return described;
}

bool Generation::add_text(const std::string& text) {
  streamed_bytes_ += text.size();
  StopMatcher::Progress progress = stops_.push(text);
  released_bytes_ += progress.released.size();
  released_ += progress.released;
  if (progress.matched) stop_ = request_.stop[*progress.matched];
  return progress.matched.has_value();
}

Result<bool> Generation::advance(LogitRow& row, const std::function<void()>& sampled) {
  if (request_.max_tokens == 0) {
    finish(FinishReason::kLength);
    return true;
  }
  if (matcher_ && matcher_->must_end()) {  // complete before its first token
    finish(FinishReason::kStop);
    return true;
  }
  // Log-probabilities are made of all logits.
  std::span<const float> logits;
  if (request_.logprobs) {
    auto all = row.all();
    if (!all) return std::unexpected(std::move(all.error()));
    logits = *all;
  }
  const auto next = next_token(row, sampled);
  if (!next) return std::unexpected(next.error());
  const TokenId token = *next;
  if (token < 0) return true;
  if (is_end(token)) {
    // No part of the text, but sampled and counted: its log-probability is told like the others'.
    OutputToken ending = describe(token, logits, request_.logprobs);
    ending.bytes.clear();
    pending_.push_back({std::move(ending), streamed_bytes_, streamed_bytes_});
    finish(FinishReason::kStop);
    return true;
  }
  PendingToken pending{describe(token, logits, request_.logprobs), streamed_bytes_, 0};
  const bool stopped = add_text(stream_.push(token));
  pending.end = streamed_bytes_;
  pending_.push_back(std::move(pending));
  if (stopped) {
    end(FinishReason::kStop, "", /*at_stop_string=*/true);
    return true;
  }
  // Nothing can follow: the end token that would say so needs no pass of its own.
  if (matcher_ && matcher_->must_end()) {
    finish(FinishReason::kStop);
    return true;
  }
  if (generated_count() >= request_.max_tokens) {
    finish(FinishReason::kLength);
    return true;
  }
  send({});
  return false;
}

// An end is allowed where the grammar is complete, and only there.
Result<const TokenMask*> Generation::allowed(bool may_end) {
  if (!matcher_) return nullptr;
  const auto mask = matcher_->allowed();
  if (!mask) return std::unexpected(mask.error());
  if (may_end && matcher_->can_end()) {
    if (!request_.ignore_eos) (*mask)->allow_tokens(tokenizer_.end_tokens());
    (*mask)->allow_tokens(request_.stop_tokens);
  }
  return *mask;
}

std::span<const float> Generation::masked(std::span<const float> logits, const TokenMask* mask) {
  if (mask == nullptr) return logits;
  masked_.assign(logits.begin(), logits.end());
  // An unusable number ends the request wherever it stands: a mask must not hide it.
  uint32_t unusable = 0;
  for (const float logit : masked_) {
    unusable |= logit <= std::numeric_limits<float>::max() ? 0U : 1U;
  }
  if (unusable == 0) mask->apply(masked_);
  return masked_;
}

LogitCandidates Generation::masked(const LogitCandidates& candidates, const TokenMask* mask) {
  if (mask == nullptr) return candidates;
  masked_.assign(candidates.logits.begin(), candidates.logits.end());
  for (size_t index = 0; index < masked_.size(); ++index) {
    if (!mask->allows(candidates.tokens[index])) {
      masked_[index] = -std::numeric_limits<float>::infinity();
    }
  }
  LogitCandidates allowed = candidates;
  allowed.logits = masked_;
  allowed.draw.reset();
  return allowed;
}

// Log-probabilities need the whole row, and who has it needs no draw.
LogitDrawRequest Generation::draw_request(size_t ahead) const {
  const bool bans = generated_count() + ahead < request_.min_tokens;
  const bool is_free = !matcher_ && !(reasoning_ && reasoning_->next());
  if (pooled || request_.max_tokens == 0 || request_.logprobs || !is_free || bans) {
    return {};
  }
  return sampler_.draw_request(ahead);
}

bool Generation::picks_plainly() const {
  if (pooled || matcher_ || reasoning_ || request_.logprobs || wants_prompt_logits()) return false;
  if (request_.max_tokens == 0 || generated_count() < request_.min_tokens) return false;
  return sampler_.picks_plainly();
}

size_t Generation::fitting_drafts(std::span<const TokenId> drafts) {
  return matcher_ ? matcher_->fitting(drafts) : drafts.size();
}

size_t Generation::forced_drafts(std::span<TokenId> drafts) {
  return matcher_ ? matcher_->forced(drafts) : 0;
}

std::span<const float> Generation::only(std::span<const float> logits, TokenId token) {
  if (!all_finite(logits)) return logits;  // an unusable number ends the request
  masked_.assign(logits.size(), -std::numeric_limits<float>::infinity());
  masked_[static_cast<size_t>(token)] = logits[static_cast<size_t>(token)];
  return masked_;
}

Result<TokenId> Generation::sample(LogitRow& logits, const TokenMask* mask, bool may_end) {
  const std::span<const TokenId> banned = may_end ? std::span<const TokenId>() : end_tokens_;
  if (const auto token = reasoning_ ? reasoning_->next() : std::nullopt) {
    const auto all = logits.all();
    if (!all) return std::unexpected(all.error());
    return sampler_.sample(only(*all, *token), {});
  }
  if (const LogitCandidates* candidates = logits.candidates(); candidates != nullptr) {
    if (const auto token = sampler_.sample(masked(*candidates, mask), banned)) return *token;
  }
  const auto all = logits.all();
  if (!all) return std::unexpected(all.error());
  return sampler_.sample(masked(*all, mask), banned);
}

Result<TokenId> Generation::next_token(LogitRow& logits, const std::function<void()>& sampled) {
  constexpr TokenId kNoToken = -1;
  const bool may_end = generated_count() >= request_.min_tokens;
  const auto mask = allowed(may_end);
  if (!mask) {
    finish(FinishReason::kInvalidRequest, mask.error().message);
    return kNoToken;
  }
  const auto picked = sample(logits, *mask, may_end);
  if (!picked) return picked;
  const TokenId token = *picked;
  if (token < 0) {
    // The logits are finite, so what is picked from them is the request's own matter.
    finish(FinishReason::kInvalidRequest, no_token_left());
    return kNoToken;
  }
  tokens_.push_back(token);
  sampled();
  if (reasoning_) reasoning_->add(stream_.piece(token));
  if (matcher_ && !is_end(token)) {
    if (const auto accepted = matcher_->accept(token); !accepted) {
      finish(FinishReason::kInvalidRequest, accepted.error().message);
      return kNoToken;
    }
  }
  return token;
}

std::string Generation::no_token_left() const {
  const size_t generated = generated_count();
  const bool bans = generated < request_.min_tokens;
  const std::string early =
      bans ? fmt::format(", and min_tokens {} bans the end", request_.min_tokens) : "";
  if (!matcher_)
    return fmt::format("no token is left after {}: all are banned{}", generated, early);
  return fmt::format(
      "no token is left after {}: the grammar allows none of the vocabulary's{}; loosen one",
      generated, early);
}

bool Generation::finish_pooled() {
  if (request_.ranking) {
    scores_ = pooled->sums();
    finish(FinishReason::kStop);
    return true;
  }
  auto embedding = request_.normalizes ? pooled->normalized() : pooled->mean();
  if (!embedding) return false;
  embedding_ = std::move(*embedding);
  finish(FinishReason::kStop);
  return true;
}

void Generation::finish(FinishReason reason, std::string error) {
  end(reason, std::move(error), /*at_stop_string=*/false);
}

void Generation::finish_surely(FinishReason reason, const std::string& error) {
  try {
    finish(reason, error);
    if (!request_.on_output) return;  // otherwise an earlier end was cut off before it was told
  } catch (const std::exception& thrown) {
    log_surely(
        [&] { spdlog::error("request {} was not told of its end: {}", id_, thrown.what()); });
  }
  try {
    finish_bare();
  } catch (const std::exception& thrown) {
    log_surely([&] { spdlog::error("request {} still was not: {}", id_, thrown.what()); });
  }
}

// The last Output with an error and nothing else, which takes no memory.
void Generation::finish_bare() {
  const auto tell = std::exchange(request_.on_output, nullptr);
  if (!tell) return;
  Output output;
  output.finish = FinishReason::kError;
  output.error = "no memory";  // short enough to lie in the string itself
  tell(std::move(output));
}

void Generation::end(FinishReason reason, std::string error, bool at_stop_string) {
  if (finished_) return;
  finished_ = reason;
  if (!at_stop_string) {
    // The last, unfinished character can still complete a stop string.
    at_stop_string = add_text(stream_.finish());
    if (at_stop_string && reason == FinishReason::kLength) finished_ = FinishReason::kStop;
  }
  if (at_stop_string) {
    // A token that begins within the stop string is no part of the answer.
    std::erase_if(pending_, [&](const auto& held) { return held.begin >= released_bytes_; });
  } else {
    released_ += stops_.finish();
  }
  released_bytes_ = streamed_bytes_;
  if (prompt_tokens_.size() < prompt_count_) prompt_tokens_.clear();
  Output output;
  output.finish = finished_;
  output.stop = stop_;
  output.error = std::move(error);
  output.embedding = std::move(embedding_);
  output.scores = std::move(scores_);
  send(std::move(output));
  request_.on_output = nullptr;
}

void Generation::send(Output output) {
  output.text = std::exchange(released_, {});
  output.prompt = std::exchange(prompt_tokens_, {});
  while (!pending_.empty() && pending_.front().end <= released_bytes_) {
    output.tokens.push_back(std::move(pending_.front().token));
    pending_.pop_front();
  }
  output.prompt_tokens = static_cast<uint32_t>(prompt_count_);
  output.cached_tokens = static_cast<uint32_t>(cached_tokens);
  output.generated_tokens = static_cast<uint32_t>(generated_count());
  output.accepted_draft_tokens = accepted_tokens;
  output.rejected_draft_tokens = drafted_tokens - accepted_tokens;
  output.queue_seconds = queue_seconds;
  const bool news =
      output.finish || !output.text.empty() || !output.tokens.empty() || !output.prompt.empty();
  if (news && request_.on_output) request_.on_output(std::move(output));
}

}  // namespace lockstep
