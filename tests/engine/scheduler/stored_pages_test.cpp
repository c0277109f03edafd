// Pages and states that a store outside of the cache has: what comes late is waited for.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <utility>

#include "tests/engine/scheduler/passes.h"

namespace lockstep {
namespace {

// Has pieces of which some come after so many times that they were asked for.
class LateStore final : public PageStore {
 public:
  bool contains(const StoredKey& key) override { return asks_left_.contains(key); }
  Answer ask(const StoredKey& key) override {
    const auto found = asks_left_.find(key);
    if (found == asks_left_.end()) return Answer::kAbsent;
    if (found->second == 0) return Answer::kHere;
    --found->second;
    return Answer::kComing;
  }
  bool load(const StoredKey& key, uint32_t) override {
    const auto found = asks_left_.find(key);
    return found != asks_left_.end() && found->second == 0;
  }
  bool save(const StoredKey& key, uint32_t, bool) override {
    asks_left_.emplace(key, 0);
    return true;
  }
  void copy_states(std::span<const SlotCopy>) override {}
  bool outlives_process() const override { return true; }
  void erase(const StoredKey& key) override { asks_left_.erase(key); }

  // The last pieces come with the ask of this number, the others are at hand.
  void delay(size_t pieces, size_t asks) {
    for (auto piece = asks_left_.rbegin(); piece != asks_left_.rend() && pieces > 0; ++piece) {
      piece->second = asks;
      --pieces;
    }
  }
  size_t count() const { return asks_left_.size(); }

 private:
  std::map<StoredKey, size_t> asks_left_;
};

// A process that computes a prompt of ten pages and a token, and saves it; and the next one, which
// asks for it, some pieces of which come late. The first token that this computes.
size_t first_computed(SchedulerLimits limits, size_t late, size_t asks) {
  LateStore store;
  limits.page_store = &store;
  limits.page_count = 40;
  limits.batch_tokens = 64;
  {
    Passes passes(limits, 64);
    const SequenceId id = passes.add(41, 60, {}, 0);
    passes.most[id] = 1;
    while (!passes.scheduler.idle()) passes.pass();
    while (passes.scheduler.save_page(/*all=*/true) == SequencePages::Saved::kOne) {
    }
  }
  EXPECT_GE(store.count(), 10U);
  store.delay(late, asks);
  Passes passes(limits, 64);
  const SequenceId id = passes.add(41, 60, {}, 0);
  for (size_t tries = 0; tries < 100; ++tries) {
    passes.now += 0.001;
    const auto chunks = passes.pass();
    if (!chunks.empty()) return chunks.at(id).begin;
  }
  ADD_FAILURE() << "nothing is computed";
  return 0;
}

TEST(StoredPages, that_come_at_any_moment_are_not_computed) {
  for (const size_t slots : {size_t{0}, size_t{12}}) {
    for (size_t late = 0; late <= 11; ++late) {
      for (size_t asks = 0; asks <= 6; ++asks) {
        SCOPED_TRACE(testing::Message() << slots << " slots, " << late << " late, " << asks);
        SchedulerLimits limits = small_limits();
        limits.state_slots = slots;
        EXPECT_EQ(first_computed(limits, late, asks), 40U);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
