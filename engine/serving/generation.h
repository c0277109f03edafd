// One request on its way: its tokens, its sampler, and the text that has become certain. Belongs to
// the engine's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/drafting/draft_pages.h"
#include "engine/drafting/drafter.h"
#include "engine/drafting/earlier_answers.h"
#include "engine/interface/request.h"
#include "engine/scheduler/queue_shares.h"
#include "engine/scheduler/scheduler.h"
#include "engine/serving/pooled_rows.h"
#include "engine/serving/reasoning_watch.h"
#include "engine/text/grammar/grammar_matcher.h"
#include "engine/text/text_stream.h"

namespace lockstep {

class Generation {
 public:
  using Clock = std::chrono::steady_clock;

  // The tokenizer must outlive this.
  Generation(RequestId id, Request request, const Tokenizer& tokenizer, size_t vocabulary_size);

  RequestId id() const { return id_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }  // prompt and generated
  const Request& request() const { return request_; }             // but for its prompt
  size_t prompt_count() const { return prompt_count_; }
  // Tokens that it brings: its prompt's and its prediction's.
  size_t queued_tokens() const {
    return prompt_count_ + (request_.prediction ? request_.prediction->size() : 0);
  }
  size_t generated_count() const { return tokens_.size() - prompt_count_; }
  bool wants_prompt_logits() const { return request_.prompt_logprobs.has_value(); }
  // Most tokens that are ever computed: the last one sampled never is.
  size_t most_computed_tokens() const;

  // The logits after prompt token `index`: the log-probability of the next one is kept.
  void add_prompt_logits(size_t index, std::span<const float> logits);

  // The draw that advance() would make, for the rank that holds the logits; a default one:
  // advance() draws from the logits itself. `ahead`: of the call that comes so many after the next.
  LogitDrawRequest draw_request(size_t ahead = 0) const;

  // The next token is sure to be draw_request()'s draw, or without one the likeliest, and no more
  // of the row is needed than candidates: nothing bans, forces or describes it.
  bool picks_plainly() const;

  // How many of the drafted tokens, from the first one on, the grammar would allow.
  size_t fitting_drafts(std::span<const TokenId> drafts);
  // Writes tokens of the text that the grammar leaves no other for; returns how many.
  size_t forced_drafts(std::span<TokenId> drafts);

  // Samples the next token from the logits (finite ones) after the last one, calls `sampled` if
  // there is one, and tells the client what has become certain. True if the request has ended with
  // that. Fails, and nothing has happened, where the logits cannot be read.
  Result<bool> advance(LogitRow& logits, const std::function<void()>& sampled);

  // Ends a request for an embedding or for scores with them, all rows being pooled; false if they
  // make none.
  bool finish_pooled();

  // How it has ended; none: it goes on.
  std::optional<FinishReason> finished() const { return finished_; }

  // Ends the request: the last Output. Nothing happens if it has ended already.
  void finish(FinishReason reason, std::string error = "");
  // The same, and throws nothing: where that throws, who waits is told of the end alone.
  void finish_surely(FinishReason reason, const std::string& error);

  // The engine's: when it came, when the last token came, what the scheduler calls it.
  Clock::time_point submitted_at = Clock::now();
  std::optional<Clock::time_point> last_token_at;
  SequenceId sequence = 0;
  std::optional<PooledRows> pooled;     // of a request for an embedding or for scores
  RequestId submission = 0;             // the first id of those that were submitted with it
  size_t places = 1;                    // that it takes of those for requests that run or wait
  size_t cached_tokens = 0;             // of the prompt, found in the prefix cache
  bool started = false;                 // has been part of a pass
  std::optional<double> queue_seconds;  // until it was
  bool asks_drafter = true;             // as far as is known: its own may be none, or have failed
  bool takes_drafts = true;             // as far as is known: they may be switched off
  std::unique_ptr<Drafter> drafter;     // once it generates
  size_t drafter_expects = 0;           // of the prediction: told to it
  size_t drafter_knows = 0;             // of the tokens: likewise
  AnswerScope answers;                  // from which it drafts, and which it adds to
  std::optional<AnswerPlace> answer_place;           // in them, of its last draft
  TextBorders borders;                               // of the tokens, for a stage that drafts
  DraftSource draft_source = DraftSource::kDrafter;  // of its last draft
  uint32_t drafted_tokens = 0;                       // that passes have computed and verified
  uint32_t accepted_tokens = 0;                      // of them

 private:
  // A token whose text lies at [begin, end) of the generated text, not sent yet.
  struct PendingToken {
    OutputToken token;
    size_t begin = 0;
    size_t end = 0;
  };

  bool is_end(TokenId token) const;
  std::string no_token_left() const;  // why nothing could be picked
  // The tokens that the grammar allows next; null without a grammar.
  Result<const TokenMask*> allowed(bool may_end);
  // The logits as the sampler shall see them: those of tokens that the mask does not allow are
  // minus infinity. Without a mask they are the given ones.
  std::span<const float> masked(std::span<const float> logits, const TokenMask* mask);
  LogitCandidates masked(const LogitCandidates& candidates, const TokenMask* mask);
  // The logits with all but that one token minus infinity.
  std::span<const float> only(std::span<const float> logits, TokenId token);
  // From the candidates where they will do; -1: nothing can be picked. Fails as LogitRow::all().
  Result<TokenId> sample(LogitRow& logits, const TokenMask* mask, bool may_end);
  // Samples, and follows the grammar; -1 after the request has ended with an error.
  Result<TokenId> next_token(LogitRow& logits, const std::function<void()>& sampled);
  OutputToken describe(TokenId token, std::span<const float> logits,
                       std::optional<uint32_t> alternatives) const;
  // Adds text that the stream has completed; true if a stop string ends the generation.
  bool add_text(const std::string& text);
  void end(FinishReason reason, std::string error, bool at_stop_string);
  void finish_bare();
  void send(Output output);

  RequestId id_;
  Request request_;
  const Tokenizer& tokenizer_;
  size_t prompt_count_;
  std::vector<TokenId> tokens_;
  std::vector<TokenId> end_tokens_;  // banned below min_tokens
  Sampler sampler_;
  std::optional<GrammarMatcher> matcher_;
  std::optional<ReasoningWatch> reasoning_;  // none: it has no limit
  std::vector<float> masked_;                // reused
  TextStream stream_;
  StopMatcher stops_;
  std::vector<OutputToken> prompt_tokens_;  // with prompt_logprobs, until they are sent
  std::deque<PendingToken> pending_;
  std::vector<float> embedding_;
  std::vector<float> scores_;
  std::string stop_;           // the stop string that was found
  std::string released_;       // text for the next Output
  size_t streamed_bytes_ = 0;  // that the stream has completed
  size_t released_bytes_ = 0;  // that no stop string can take back
  std::optional<FinishReason> finished_;
};

}  // namespace lockstep
