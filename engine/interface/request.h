// A request to the engine, and the news of it that its client gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/drafting/drafter.h"
#include "engine/sampling/sampler.h"
#include "engine/text/grammar.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

enum class FinishReason {
  kStop,       // an end token, a stop token or a stop string; an embedding is complete
  kLength,     // max_tokens, or the context is full
  kCancelled,  // cancel(), or the drain cut it off
  kError,      // the model gave no usable numbers, or a bug ended this request alone
  kDeadline,   // Request::deadline_seconds were over
  kDisplaced,  // the queue was full, its tenant above its share, and another asked (queue_shares.h)
  // The request's own rules for its answer (grammar, min_tokens, biases) leave no token to go on
  // with, or are too ambiguous or too deep to follow.
  kInvalidRequest,
};
inline constexpr size_t kFinishReasonCount = 7;

// When this many submissions in a row end without usable numbers (NaN or infinity), the model or
// the memory is damaged, not a prompt. One that ends well begins the count anew.
inline constexpr uint64_t kUnusableSubmissionsMax = 3;

struct OutputToken {
  TokenId token = 0;
  std::string bytes;  // what it decodes to; may be half a character, empty for a skipped token
  float logprob = 0;  // with logprobs asked for; of the raw logits
  std::vector<TokenLogprob> top;  // the most likely, descending; as many as were asked for
};

// One step's news of a request.
struct Output {
  std::vector<OutputToken> prompt;  // once, first, with prompt_logprobs: every prompt token;
                                    // the first one's logprob is NaN and its top empty
  std::string text;                 // whole UTF-8 characters, none of them part of a stop string
  std::vector<OutputToken> tokens;  // those whose text is in `text` or gave none; tokens that are
                                    // wholly part of a stop string never come
  std::optional<FinishReason> finish;  // set in the last Output of a request, and only there
  std::string stop;                    // with kStop: the stop string that was found, if one was
  std::string error;                   // with kError and kInvalidRequest
  std::vector<float> embedding;        // with kStop of a Request::embedding
  std::vector<float> scores;           // likewise of a Request::ranking: of the head's classes
  uint32_t prompt_tokens = 0;          // totals so far, right in every Output
  uint32_t cached_tokens = 0;          // of the prompt: taken from the prefix cache, not computed
  uint32_t generated_tokens = 0;
  // Drafted tokens (docs/speculation.md) by what became of them; rejected ones are no part of
  // anything else. A draft whose tokens the client is just hearing of counts as rejected from there
  // on.
  uint32_t accepted_draft_tokens = 0;
  uint32_t rejected_draft_tokens = 0;
  std::optional<double> queue_seconds;  // from its submission to its first pass; none before
};

// The most that a model may reason: between two marks, at the begin of its text and, in some
// families, again behind that.
struct ReasoningLimit {
  uint32_t tokens = 0;   // within all such marks
  std::string open;      // the first mark; white space may come before it
  bool is_open = false;  // the prompt ends within reasoning, behind that mark
  std::string close;     // the second one
  // The tokens that follow when the limit is spent, whatever the model would say: the second mark.
  // No end of the generation is among them. Those that generate without a limit have none.
  std::vector<TokenId> end;
  std::string again;               // opens more reasoning, wherever it stands; empty: nothing does
  std::vector<TokenId> end_again;  // instead of `end`, where that is opened and the limit is spent
};

struct Request {
  std::string id;  // for the log
  // The client whose request it is, which tenants share the queue and the passes. Requests that are
  // submitted together have the same tenant.
  std::string tenant;
  // The owner of its pages of the prefix cache: no owner's prompts speed up another's, for the
  // cache is searched within one owner (and one cache_salt) alone. Many tenants may have one.
  std::string cache_owner;
  std::string cache_salt;       // divides an owner's prefix cache further
  int32_t priority = 0;         // lower goes first, among all tenants
  double deadline_seconds = 0;  // from its submission, after which it ends; 0: none
  std::vector<TokenId> prompt;  // at least one token
  // Output::embedding is made of the prompt, and nothing is generated; what follows but on_output
  // is not looked at.
  bool embedding = false;
  bool normalizes = true;  // the embedding to length 1; else it is the pooled rows as they are
  // Likewise Output::scores. Not both.
  bool ranking = false;
  // The token from which on the prompt is a second text, for models that know texts apart.
  size_t second_text = std::numeric_limits<size_t>::max();
  SamplingParameters sampling;
  uint32_t max_tokens = 16;  // 0: the prompt is only computed
  uint32_t min_tokens = 0;   // before which end tokens and stop tokens cannot be sampled
  bool ignore_eos = false;   // end tokens do not end it (they are not banned)
  std::vector<std::string> stop;
  std::vector<TokenId> stop_tokens;
  bool skip_special_tokens = true;          // control tokens give no text
  std::vector<TokenId> visible_tokens;      // but for these
  std::optional<uint32_t> logprobs;         // alternatives per generated token; 0: only its own
  std::optional<uint32_t> prompt_logprobs;  // the same for prompt tokens
  std::shared_ptr<const Grammar> grammar;   // what the generated text must be; none: anything
  std::optional<ReasoningLimit> reasoning;  // not with a grammar
  // Drafts never change what is generated, only how fast.
  bool speculation = true;  // false: no token is drafted
  // Tokens that the answer is expected to repeat, for the drafter; null: none.
  std::shared_ptr<const std::vector<TokenId>> prediction;
  // Makes a drafter of the caller's instead of the engine's, if there is one; throws nothing but
  // std::bad_alloc.
  std::function<std::unique_ptr<Drafter>()> make_drafter = {};
  // Called by the engine's thread, in order; must not block. After the Output with `finish` it is
  // destroyed and never called again.
  std::function<void(Output&&)> on_output;
};

using RequestId = uint64_t;

}  // namespace lockstep
