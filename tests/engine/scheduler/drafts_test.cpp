// Drafted tokens in passes: what they get of them, what becomes of them, and how many pay.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "engine/scheduler/draft_length.h"
#include "tests/engine/scheduler/passes.h"

namespace lockstep {
namespace {

using Tokens = std::vector<int32_t>;

SchedulerLimits drafting_limits() {
  SchedulerLimits limits = small_limits();
  limits.draft_tokens = 4;
  return limits;
}

Tokens drafts_of(const Passes& passes, SequenceId id) {
  const auto drafts = passes.scheduler.drafts(id);
  return {drafts.begin(), drafts.end()};
}

TEST(Drafts, are_rows_of_the_pass_behind_the_last_known_token) {
  Passes passes(drafting_limits());
  const SequenceId id = passes.add(3, 20);
  EXPECT_EQ(passes.scheduler.draft_tokens_most(id), 0U) << "it does not generate yet";
  passes.pass();
  ASSERT_EQ(passes.scheduler.draft_tokens_most(id), 4U);
  passes.scheduler.propose(id, Tokens{7, 8, 9});
  const Chunk chunk = passes.next().chunks.at(0);
  EXPECT_EQ(chunk.begin, 3U);
  EXPECT_EQ(chunk.count, 4U);
  EXPECT_EQ(chunk.drafted, 3U);
  EXPECT_EQ(chunk.logits_begin, 3U) << "a row for each";
  EXPECT_TRUE(chunk.sample);
  EXPECT_TRUE(chunk.generated);
  EXPECT_EQ(drafts_of(passes, id), (Tokens{7, 8, 9}));
}

TEST(Drafts, are_accepted_as_long_as_they_are_what_is_sampled) {
  Passes passes(drafting_limits());
  const SequenceId id = passes.add(3, 20);
  passes.pass();
  passes.scheduler.propose(id, Tokens{7, 8, 9});
  passes.next();
  passes.scheduler.computed();
  EXPECT_TRUE(passes.scheduler.append_token(id, 7));
  EXPECT_TRUE(passes.scheduler.append_token(id, 8));
  EXPECT_FALSE(passes.scheduler.append_token(id, 5));
  const Chunk next = passes.next().chunks.at(0);
  EXPECT_EQ(next.begin, 6U) << "three known ones are computed, and not the one sampled last";
  EXPECT_EQ(next.count, 1U);
  EXPECT_EQ(next.drafted, 0U);
}

TEST(Drafts, that_are_all_accepted_leave_one_row_more) {
  Passes passes(drafting_limits());
  const SequenceId id = passes.add(3, 20);
  passes.pass();
  passes.scheduler.propose(id, Tokens{7, 8});
  passes.next();
  passes.scheduler.computed();
  EXPECT_TRUE(passes.scheduler.append_token(id, 7));
  EXPECT_TRUE(passes.scheduler.append_token(id, 8));
  EXPECT_FALSE(passes.scheduler.append_token(id, 8)) << "there is no row behind it";
  EXPECT_EQ(passes.next().chunks.at(0).begin, 6U);
}

TEST(Drafts, get_what_the_other_tokens_leave_of_a_pass) {
  SchedulerLimits limits = drafting_limits();
  limits.batch_tokens = 8;
  Passes passes(limits, 4);
  const SequenceId first = passes.add(2, 20);
  const SequenceId second = passes.add(2, 20);
  passes.pass();
  passes.add(4, 4);  // a prompt, which has all that it may
  for (const SequenceId id : {first, second}) passes.scheduler.propose(id, Tokens{1, 2, 3, 4});
  size_t tokens = 0;
  size_t drafted = 0;
  for (const Chunk& chunk : passes.next().chunks) {
    tokens += chunk.count;
    drafted += chunk.drafted;
    EXPECT_TRUE(chunk.generated || chunk.count == 4);
  }
  EXPECT_EQ(tokens, 8U);
  EXPECT_EQ(drafted, 2U);
}

TEST(Drafts, get_no_more_rows_of_logits_than_are_left) {
  Passes passes(drafting_limits());  // 5 rows
  std::array<SequenceId, 2> ids = {passes.add(2, 20), passes.add(2, 20)};
  passes.pass();
  for (const SequenceId id : ids) passes.scheduler.propose(id, Tokens{1, 2, 3, 4});
  size_t rows = 0;
  for (const Chunk& chunk : passes.next().chunks) {
    rows += chunk.begin + chunk.count - chunk.logits_begin;
  }
  EXPECT_EQ(rows, 5U);
}

TEST(Drafts, take_no_page_from_others) {
  SchedulerLimits limits = drafting_limits();
  limits.page_count = 2;  // of 4 tokens
  Passes passes(limits);
  const SequenceId first = passes.add(2, 4);
  const SequenceId second = passes.add(2, 2);
  passes.pass();
  passes.scheduler.propose(first, Tokens{1, 2});
  const Schedule& schedule = passes.next();
  ASSERT_EQ(schedule.chunks.size(), 2U);
  EXPECT_EQ(schedule.chunks.at(0).drafted, 1U) << "what its page has a place for";
  EXPECT_EQ(passes.pages(second).size(), 1U);
  EXPECT_EQ(passes.scheduler.counters().preemptions, 0U);
}

TEST(Drafts, that_are_rejected_give_their_pages_back) {
  Passes passes(drafting_limits());
  const SequenceId id = passes.add(3, 20);
  passes.pass();
  passes.scheduler.propose(id, Tokens{1, 2, 3, 4});
  passes.next();
  EXPECT_EQ(passes.pages(id).size(), 2U);
  passes.scheduler.computed();
  passes.scheduler.append_token(id, 9);
  EXPECT_EQ(passes.pages(id).size(), 2U) << "the fifth token needs the second page";
  const SequenceId other = passes.add(1, 20);
  passes.pass();
  passes.scheduler.propose(other, Tokens{1, 2, 3, 4});
  passes.next();
  EXPECT_EQ(passes.pages(other).size(), 2U);
  passes.scheduler.computed();
  passes.scheduler.append_token(id, 9);
  passes.scheduler.append_token(other, 9);
  EXPECT_EQ(passes.pages(other).size(), 1U);
}

// The prefix cache knows what was accepted, and nothing else.
TEST(Drafts, make_known_what_is_accepted_alone) {
  Passes passes(drafting_limits());
  const SequenceId id = passes.add(3, 20, {}, 100);
  passes.pass();  // samples 7
  passes.scheduler.propose(id, Tokens{1, 2, 3, 4});
  passes.next();
  passes.scheduler.computed();
  EXPECT_EQ(passes.scheduler.cache().block_count(), 1U);
  passes.scheduler.append_token(id, 1);
  passes.scheduler.append_token(id, 2);
  passes.scheduler.append_token(id, 3);
  EXPECT_EQ(passes.scheduler.cache().block_count(), 1U);
  EXPECT_TRUE(passes.scheduler.append_token(id, 4));
  EXPECT_EQ(passes.scheduler.cache().block_count(), 2U);
  passes.scheduler.finish(id);
  NewSequence again;
  again.prompt = {100, 101, 102, 7, 1, 2, 3, 4, 5};
  again.most_tokens = 10;
  const SequenceId found = passes.scheduler.add(again, 0);
  EXPECT_EQ(passes.next().chunks.at(0).begin, 8U);
  EXPECT_EQ(passes.scheduler.cached_tokens(found), 8U);
}

// Its drafts are right, and it would be twice as fast for them; the other stream has none.
TEST(Drafts, of_one_stream_take_a_tenth_of_another_ones_speed_at_most) {
  for (const bool both : {false, true}) {
    SchedulerLimits limits = small_limits();
    limits.batch_tokens = 64;
    limits.logit_rows = 64;
    limits.page_count = 1000;
    Passes passes(limits, 64);
    const std::array<SequenceId, 2> ids = {passes.add(3, 1600), passes.add(3, 1600)};
    passes.pass();
    double seconds = 0;
    size_t drafted = 0;
    constexpr int kPasses = 60;
    for (int pass = 0; pass < kPasses; ++pass) {
      for (const SequenceId id : ids) {
        const size_t most = passes.scheduler.draft_tokens_most(id);
        if (most > 0 && (both || id == ids[0])) passes.scheduler.propose(id, Tokens(most, 1));
      }
      const Schedule schedule = passes.next();
      size_t rows = 0;
      for (const Chunk& chunk : schedule.chunks) rows += chunk.count;
      passes.scheduler.computed();
      for (const Chunk& chunk : schedule.chunks) {
        drafted += chunk.drafted;
        while (passes.scheduler.append_token(chunk.sequence, 1)) {
        }
      }
      passes.scheduler.add_pass_seconds(1 + 0.04 * static_cast<double>(rows));
      seconds += 1 + 0.04 * static_cast<double>(rows);
    }
    const double alone = kPasses * (1 + 0.04 * 2);
    if (both) {
      EXPECT_GT(seconds, 1.3 * alone) << "both gain by long drafts";
      EXPECT_GT(drafted, 5U * kPasses);
    } else {
      EXPECT_LE(seconds, alone / 0.89);
      EXPECT_GT(drafted, 1U * kPasses);
    }
  }
}

// Grammars are right where a drafter is not: how long drafts are is learnt of each by itself.
TEST(Drafts, of_two_sources_have_lengths_of_their_own) {
  SchedulerLimits limits = small_limits();
  limits.batch_tokens = 64;
  limits.logit_rows = 64;
  limits.page_count = 500;
  Passes passes(limits, 64);
  const SequenceId id = passes.add(3, 1600);
  const auto passed = [&](const Tokens& drafts, DraftSource source, bool is_right) {
    if (!drafts.empty()) passes.scheduler.propose(id, drafts, source);
    const size_t rows = passes.next().chunks.at(0).count;
    passes.scheduler.computed();
    passes.scheduler.add_pass_seconds(1 + 0.01 * static_cast<double>(rows));
    size_t place = 0;
    while (
        passes.scheduler.append_token(id, is_right && place < drafts.size() ? drafts[place] : 5)) {
      ++place;
    }
  };
  passes.pass();
  for (int pass = 0; pass < 4; ++pass) passed({}, DraftSource::kDrafter, false);
  for (int pass = 0; pass < 40; ++pass) {
    for (const DraftSource source : {DraftSource::kDrafter, DraftSource::kGrammar}) {
      const size_t most = passes.scheduler.draft_tokens_most(id, source);
      passed(Tokens(most, 1), source, source == DraftSource::kGrammar);
    }
  }
  EXPECT_LE(passes.scheduler.draft_tokens_most(id, DraftSource::kDrafter), 1U);
  EXPECT_GT(passes.scheduler.draft_tokens_most(id, DraftSource::kGrammar), 8U);
}

TEST(Drafts, end_where_the_sequence_does) {
  Passes passes(drafting_limits());
  const SequenceId id = passes.add(3, 3);  // one is sampled and not computed
  passes.pass();
  EXPECT_EQ(passes.scheduler.draft_tokens_most(id), 0U);
  passes.scheduler.finish(id);
  const SequenceId longer = passes.add(3, 5);
  passes.pass();
  EXPECT_EQ(passes.scheduler.draft_tokens_most(longer), 2U);
}

SchedulerLimits drafting_limits_with_states(size_t slots) {
  SchedulerLimits limits = drafting_limits();
  limits.page_tokens = 8;
  limits.state_slots = slots;
  return limits;
}

TEST(Drafts, of_sequences_with_states_begin_with_a_copy_that_a_rejected_token_makes_the_state) {
  Passes passes(drafting_limits_with_states(4));
  const SequenceId id = passes.add(2, 20);
  passes.pass();
  const auto slot = passes.scheduler.state(id);
  passes.scheduler.propose(id, Tokens{7, 8, 9});
  const Schedule drafted = passes.next();
  ASSERT_EQ(drafted.state_copies.size(), 1U);
  EXPECT_EQ(drafted.state_copies[0].from, slot);
  passes.scheduler.computed();
  EXPECT_TRUE(passes.scheduler.append_token(id, 7));
  EXPECT_FALSE(passes.scheduler.append_token(id, 5));
  EXPECT_EQ(passes.scheduler.state(id), drafted.state_copies[0].to);
  EXPECT_EQ(passes.scheduler.slots().pool().held_count(), 1U);
  // Both known tokens of that pass once more, the one sampled last, and a draft behind it.
  ASSERT_EQ(passes.scheduler.draft_tokens_most(id), 3U);
  passes.scheduler.propose(id, Tokens{1});
  const Schedule next = passes.next();
  const Chunk& chunk = next.chunks.at(0);
  EXPECT_EQ(chunk.begin, 2U);
  EXPECT_EQ(chunk.count, 4U);
  EXPECT_EQ(chunk.drafted, 1U);
  EXPECT_EQ(chunk.logits_begin, 4U);
  EXPECT_EQ(next.state_copies.size(), 1U);
  passes.scheduler.computed();
  EXPECT_TRUE(passes.scheduler.append_token(id, 1));
  EXPECT_FALSE(passes.scheduler.append_token(id, 1));
  EXPECT_EQ(passes.scheduler.state(id), drafted.state_copies[0].to);
  EXPECT_EQ(passes.next().chunks.at(0).begin, 6U) << "nothing is computed again";
}

TEST(Drafts, of_sequences_with_states_end_at_a_border_where_a_checkpoint_is_kept) {
  Passes passes(drafting_limits_with_states(5));
  const SequenceId id = passes.add(4, 20);
  passes.pass();
  EXPECT_EQ(passes.scheduler.draft_tokens_most(id), 3U);
  passes.scheduler.propose(id, Tokens{7, 7, 7});
  passes.pass();  // the first is accepted, and the second never comes
  passes.scheduler.finish(id);
  const SequenceId other = passes.add(4, 20, {}, 5000);
  passes.pass();
  passes.scheduler.propose(other, Tokens{1, 2, 3});
  passes.next();
  passes.scheduler.computed();
  for (const int32_t token : {1, 2, 3}) EXPECT_TRUE(passes.scheduler.append_token(other, token));
  EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 1U);
  EXPECT_FALSE(passes.scheduler.append_token(other, 4));
  EXPECT_EQ(passes.scheduler.draft_tokens_most(other), 4U);
  passes.scheduler.finish(other);
  NewSequence again;
  again.prompt = {5000, 5001, 5002, 5003, 7, 1, 2, 3, 4, 5};
  again.most_tokens = 12;
  passes.scheduler.add(again, 0);
  EXPECT_EQ(passes.next().chunks.at(0).begin, 8U);
}

TEST(Drafts, of_sequences_with_states_are_dropped_where_all_slots_are_held) {
  Passes passes(drafting_limits_with_states(3));
  std::array<SequenceId, 3> ids = {passes.add(2, 20), passes.add(2, 20), passes.add(2, 20)};
  passes.pass();
  for (const SequenceId id : ids) passes.scheduler.propose(id, Tokens{1});
  const Schedule schedule = passes.next();
  ASSERT_EQ(schedule.chunks.size(), 3U);
  for (const Chunk& chunk : schedule.chunks) EXPECT_EQ(chunk.drafted, 0U);
  EXPECT_EQ(passes.scheduler.counters().preemptions, 0U);
}

// Drafters of a given chance of success on a simulated machine.
class DraftedStreams {
 public:
  // `again`: with states, so that a rejected token lets those before it be computed again.
  DraftedStreams(double row_share, size_t streams, double chance, bool again)
      : row_seconds_(row_share / (1 - row_share)),
        streams_(streams),
        chance_(chance),
        again_(again) {
    acceptances_.resize(streams);
  }

  // Tokens per second over so many passes; a pass of no rows takes a second.
  double speed(size_t passes, bool drafts) {
    double seconds = 0;
    double tokens = 0;
    for (size_t pass = 0; pass < passes; ++pass) {
      size_t rows = streams_ + std::exchange(rows_again_, 0);
      const double least = least_draft_chance(cost_, streams_);
      const size_t most = drafts ? cost_.draft_tokens_most() : 0;
      for (DraftAcceptance& acceptance : acceptances_) {
        const size_t length = std::min(draft_length(acceptance, least, again_), most);
        size_t accepted = 0;
        while (accepted < length && part_(random_) < chance_) ++accepted;
        rows += length;
        tokens += static_cast<double>(1 + accepted);
        drafted_ += length;
        if (again_ && accepted < length) rows_again_ += accepted + 1;
        if (length > 0) {
          acceptance.add(accepted, accepted < length);
        } else {
          acceptance.rest();
        }
      }
      const double taken = 1 + row_seconds_ * static_cast<double>(rows);
      cost_.add(rows, taken * (1 + 0.02 * part_(random_)));
      seconds += taken;
    }
    return tokens / seconds;
  }
  size_t drafted() const { return drafted_; }

 private:
  double row_seconds_;
  size_t streams_;
  double chance_;
  bool again_;
  size_t rows_again_ = 0;
  RowCost cost_;
  std::vector<DraftAcceptance> acceptances_;
  std::mt19937_64 random_{3};
  std::uniform_real_distribution<double> part_;
  size_t drafted_ = 0;
};

double gain(double row_share, size_t streams, double chance, bool again = false) {
  const double without = DraftedStreams(row_share, streams, chance, again).speed(2000, false);
  return DraftedStreams(row_share, streams, chance, again).speed(2000, true) / without;
}

TEST(DraftLength, costs_next_to_nothing_where_every_draft_is_wrong) {
  for (const double row_share : {0.005, 0.02, 0.05, 0.1, 0.3, 0.9}) {
    for (const size_t streams : {1U, 4U, 16U, 64U}) {
      for (const bool again : {false, true}) {
        EXPECT_GT(gain(row_share, streams, 0, again), again ? 0.97 : 0.98)
            << row_share << ", " << streams << " streams, again " << again;
      }
    }
  }
}

TEST(DraftLength, gives_most_of_what_drafts_that_are_right_can_give) {
  EXPECT_GT(gain(0.02, 1, 1), 10);
  EXPECT_GT(gain(0.05, 1, 1), 8);
  EXPECT_GT(gain(0.02, 1, 0.8), 3.5);
  EXPECT_GT(gain(0.02, 4, 0.8), 2.3);
  EXPECT_GT(gain(0.02, 1, 1, true), 10);
  EXPECT_GT(gain(0.02, 1, 0.8, true), 3);
  // All streams are as many all the time: what a row costs is learnt by drafting.
  EXPECT_GT(gain(0.005, 16, 0.8), 2.3);
}

TEST(DraftLength, never_makes_a_batch_slower_in_which_drafts_do_not_pay) {
  for (const double chance : {0.2, 0.5, 0.8, 0.95, 1.0}) {
    for (const double row_share : {0.005, 0.05, 0.3, 0.9}) {
      for (const size_t streams : {1U, 2U, 8U, 32U, 128U}) {
        for (const bool again : {false, true}) {
          EXPECT_GT(gain(row_share, streams, chance, again), 0.98)
              << row_share << ", " << streams << " streams, chance " << chance << ", again "
              << again;
        }
      }
    }
  }
}

TEST(DraftLength, falls_to_none_as_the_batch_fills) {
  RowCost cost;
  for (int pass = 0; pass < 100; ++pass) {
    const size_t rows = 1 + static_cast<size_t>(pass % 40);
    cost.add(rows, 1 + 0.1 * static_cast<double>(rows));
  }
  DraftAcceptance acceptance;
  acceptance.add(100, true);
  size_t before = kDraftTokensMost;
  for (size_t streams = 1; streams <= 128; streams *= 2) {
    const size_t length = draft_length(acceptance, least_draft_chance(cost, streams));
    EXPECT_LE(length, before);
    before = length;
  }
  EXPECT_EQ(before, 0U);
  EXPECT_GT(draft_length(acceptance, least_draft_chance(cost, 1)), 8U);
}

TEST(RowCost, is_the_slope_of_measured_passes) {
  RowCost cost;
  EXPECT_EQ(cost.draft_tokens_most(), 0U);
  for (int pass = 0; pass < 50; ++pass) cost.add(1, 2.1);
  EXPECT_DOUBLE_EQ(cost.share_of_next(1), RowCost::kAssumedShare) << "one size says nothing";
  EXPECT_EQ(cost.draft_tokens_most(), 1U);
  cost.add(2, 2.2);
  EXPECT_EQ(cost.draft_tokens_most(), kDraftTokensMost);
  EXPECT_NEAR(cost.share_of_next(1), 0.1 / 2.1, 1e-9);
  for (int pass = 0; pass < 50; ++pass) {
    const size_t rows = pass % 2 == 0 ? 1 : 6;
    cost.add(rows, 2 + 0.1 * static_cast<double>(rows));
  }
  EXPECT_NEAR(cost.share_of_next(1), 0.1 / 2.1, 1e-3);
  EXPECT_NEAR(cost.share_of_next(10), 0.1 / 3, 1e-3);
  for (int pass = 0; pass < 400; ++pass) cost.add(6, 2.6);
  EXPECT_EQ(cost.draft_tokens_most(), 1U) << "it is measured again";
}

// A pass of the other model gives a place to all drafts at once.
TEST(SharedDraftLength, grows_with_streams_and_falls_with_the_price) {
  const auto length = [](size_t streams, double rate, double row_share, double pass_share) {
    const std::vector<SharedDraft> drafts(streams, SharedDraft{rate, kDraftTokensMost});
    return shared_draft_length(drafts, row_share, pass_share, streams);
  };
  EXPECT_EQ(length(1, 0.9, 0, 0), kDraftTokensMost) << "what is free always pays";
  EXPECT_EQ(length(1, 0, 0.01, 0.01), 0U);
  // Alone each place has to bring more than it takes: 0.8, 0.64, 0.51, 0.41 against 1.25 * 0.4.
  EXPECT_EQ(length(1, 0.8, 0, 0.4), 3U);
  // With eight streams each place brings eight times as much, and costs as much of eight tokens.
  EXPECT_EQ(length(8, 0.8, 0, 0.4), 3U);
  EXPECT_LT(length(8, 0.8, 0.05, 0.4), length(8, 0.8, 0, 0.4));
  EXPECT_LT(length(8, 0.8, 0, 0.6), length(8, 0.8, 0, 0.3));
  EXPECT_EQ(length(8, 0.8, 1.0 / 8, 0.1), 0U) << "each row costs its part of the pass";
}

TEST(SharedDraftLength, slows_no_stream_down_by_more_than_a_tenth) {
  const std::vector<SharedDraft> one = {{0.95, kDraftTokensMost}};
  EXPECT_GT(shared_draft_length(one, 0.001, 0.05, 1), 5U);
  // Beside one that has no drafts.
  EXPECT_EQ(shared_draft_length(one, 0.001, 0.05, 2), 2U);
  const std::vector<SharedDraft> unlike = {{0.95, kDraftTokensMost}, {0.1, 1}};
  EXPECT_LE(shared_draft_length(unlike, 0.001, 0.05, 2), 4U);
}

// How good drafts are is a matter of the model: each sequence begins with what others have seen.
TEST(Drafts, by_a_model_begin_as_others_by_it_have_gone) {
  for (const bool is_right : {false, true}) {
    SchedulerLimits limits = small_limits();
    limits.batch_tokens = 64;
    limits.logit_rows = 64;
    limits.page_count = 500;
    Passes passes(limits, 64);
    const SequenceId first = passes.add(3, 1600);
    passes.pass();
    for (int pass = 0; pass < 44; ++pass) {
      const size_t most = passes.scheduler.draft_tokens_most(first, DraftSource::kModel);
      const Tokens drafts(most, 1);
      if (most > 0) passes.scheduler.propose(first, drafts, DraftSource::kModel);
      const size_t rows = passes.next().chunks.at(0).count;
      passes.scheduler.computed();
      passes.scheduler.add_pass_seconds(1 + 0.01 * static_cast<double>(rows));
      size_t place = 0;
      while (passes.scheduler.append_token(first, is_right && place < most ? 1 : 5)) ++place;
    }
    const SequenceId second = passes.add(3, 100);
    passes.pass();
    const size_t most = passes.scheduler.draft_tokens_most(second, DraftSource::kModel);
    EXPECT_EQ(most > 8, is_right) << most;
    EXPECT_GE(passes.scheduler.draft_tokens_most(second, DraftSource::kDrafter), 2U);
    // As many as pay of both together; none where the other model takes as long as this one.
    const std::vector<SequenceId> both = {first, second};
    EXPECT_EQ(passes.scheduler.shared_draft_tokens_most(both, 0.01) > 8, is_right);
    EXPECT_EQ(passes.scheduler.shared_draft_tokens_most(both, 1), 0U);
    // The same for reading a text first: sixteen tokens may be to come, each worth half a second.
    EXPECT_TRUE(passes.scheduler.reading_pays(second, 0));
    EXPECT_EQ(passes.scheduler.reading_pays(second, 1), is_right);
    EXPECT_FALSE(passes.scheduler.reading_pays(second, 1000));
  }
}

}  // namespace
}  // namespace lockstep
