// How long drafts pay: a sequence's recent acceptance against the measured cost of rows. Nothing
// here decides what is accepted, so no text depends on it. Has no clock: times are numbers that it
// is given.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "engine/drafting/drafter.h"

namespace lockstep {

// The chance that a drafted token is accepted, those before it being so. The last drafted tokens
// weigh most; what is not tried is slowly forgotten, so a sequence whose drafts have failed is
// tried again now and then.
class DraftAcceptance {
 public:
  double rate() const;

  // A pass accepted so many tokens of a draft, and rejected the next one, if there was one.
  void add(size_t accepted, bool rejected);
  // A pass of the sequence had no draft.
  void rest();

 private:
  double accepted_ = 0;  // tokens, each weighing less than the one after it
  double rejected_ = 0;
};

// The cost of one row more in a pass of generated tokens: a line through the last measured passes
// (least squares; their weights fall by a twentieth a pass). It is known once there have been
// passes of different sizes, and until a few hundred in a row were all of one: what was measured by
// chance is measured again.
class RowCost {
 public:
  // A pass of so many rows, and no prompts, took so long.
  void add(size_t rows, double seconds);

  // The time of one row more, as a part of that of a pass of `rows` rows. While it is not known a
  // row is taken for kAssumedShare of a pass of one: so little that it is tried.
  double share_of_next(size_t rows) const;
  // The expected time of a pass of so many rows; 0 before the first was added.
  double seconds(size_t rows) const;
  // Drafted tokens of a sequence that may be tried: none before a few passes were measured, one
  // until the cost is known, then any number.
  size_t draft_tokens_most() const;

  static constexpr double kAssumedShare = 1.0 / 64;

 private:
  double weight_ = 0;
  double rows_ = 0;  // sums over passes
  double seconds_ = 0;
  double rows_squared_ = 0;
  double rows_seconds_ = 0;
  std::optional<double> slope_;  // seconds a row; none: it is not known
  size_t passes_alike_ = 0;      // in a row, up to now
};

// The least chance of acceptance with which a drafted token pays beside so many streams.
//
// Without the token a pass gives `streams` tokens in its time T; with it, `streams` + p in T + c.
// That is no slower where p >= streams * c / T. It has to be more than that, so that what is lost
// where the chance is overestimated is bounded: a drafter that always errs drops below any least
// chance after a few tokens, and what is forgotten between them lets about one pass of six try.
double least_draft_chance(const RowCost& cost, size_t streams);

// How many tokens of a draft have at least that chance to be accepted, all before them included.
// `computed_again`: after a rejected token those before it are computed once more, and the last
// known one. A draft of k tokens, of which each is accepted with the chance a, lets the k-th one
// cost k a^(k - 1) (1 - a) rows beside its own, so its chance has to be that much more.
size_t draft_length(const DraftAcceptance& acceptance, double least_chance,
                    bool computed_again = false);

// The tokens that a sequence expects of a pass that verifies so many drafted ones.
double expected_tokens(const DraftAcceptance& acceptance, size_t drafted);

// Drafted tokens that a pass of so many streams may have, if the stream that gains least by them
// expects `least_tokens` of it: that stream loses a tenth of its speed at most. All together gain
// more than they lose, but one stream's drafts make the pass longer for all.
size_t draft_rows_most(const RowCost& cost, size_t streams, double least_tokens);

// A stream whose draft may have so many tokens, each accepted with this chance where those before
// it are.
struct SharedDraft {
  double rate = 0;
  size_t most = 0;
};

// How many places of drafts pay where one more pass gives a place to all of these streams' drafts
// at once: that of a smaller model, which takes `pass_share` of the time of a pass of `streams`
// streams without drafts. A row takes `row_share` of it. A place pays as a token does
// (least_draft_chance()): the chances of all its tokens together have to be more than what they
// cost. And no stream loses more than a tenth of its speed.
size_t shared_draft_length(std::span<const SharedDraft> drafts, double row_share, double pass_share,
                           size_t streams);

}  // namespace lockstep
