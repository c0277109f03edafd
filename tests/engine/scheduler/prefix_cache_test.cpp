// Pages by prefix: found by whom they belong to alone, kept while there is space, and in order.
#include "engine/scheduler/prefix_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <list>
#include <map>
#include <vector>

namespace lockstep {
namespace {

constexpr HashSecret kSecret = {1, 2};
const CacheScope kAlice = {"alice", ""};
const CacheScope kBob = {"bob", ""};

std::vector<std::byte> bytes(size_t count) {
  std::vector<std::byte> result;
  for (size_t index = 0; index < count; ++index) result.push_back(static_cast<std::byte>(index));
  return result;
}

// Some of the vectors that SipHash's authors publish with their reference: messages 00 01 02 ...
TEST(SipHash, gives_the_published_values) {
  const HashSecret key = {0x0706050403020100U, 0x0f0e0d0c0b0a0908U};
  EXPECT_EQ(siphash_128(key, bytes(0)), (Hash128{0xe6a825ba047f81a3U, 0x930255c71472f66dU}));
  EXPECT_EQ(siphash_128(key, bytes(1)), (Hash128{0x44af996bd8c187daU, 0x45fc229b11597634U}));
  EXPECT_EQ(siphash_128(key, bytes(15)), (Hash128{0x11a8b03399e99354U, 0xd9c3cf970fec087eU}));
}

TEST(PrefixKey, differs_by_secret_tenant_salt_and_every_token) {
  const std::array<int32_t, 3> tokens = {1, 2, 3};
  const PrefixKey root = root_key(kSecret, "tenant", "salt");
  EXPECT_EQ(root, root_key(kSecret, "tenant", "salt"));
  EXPECT_NE(root, root_key({1, 3}, "tenant", "salt"));
  EXPECT_NE(root, root_key(kSecret, "another", "salt"));
  EXPECT_NE(root, root_key(kSecret, "tenant", "another"));
  EXPECT_NE(root, root_key(kSecret, "tenan", "tsalt"));
  EXPECT_NE(root, root_key(kSecret, "tenantsalt", ""));
  EXPECT_NE(root, root_key(kSecret, "", "tenantsalt"));
  const PrefixKey page = next_key(kSecret, root, tokens);
  EXPECT_NE(page, next_key({1, 3}, root, tokens));
  EXPECT_NE(page, next_key(kSecret, root_key(kSecret, "tenant", ""), tokens));
  EXPECT_NE(page, next_key(kSecret, root, std::array<int32_t, 3>{1, 2, 4}));
  EXPECT_NE(page, next_key(kSecret, root, std::array<int32_t, 2>{1, 2}));
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  // A page of one token, which names it, with one holder.
  uint32_t insert(const CacheScope& scope, int32_t token, std::optional<uint32_t> before = {}) {
    const auto page = cache_.take();
    if (!page) throw std::runtime_error("no page");
    make_known(scope, prefix(scope, token, before), *page);
    return *page;
  }
  void make_known(const CacheScope& scope, const PrefixCache::Prefix& prefix, uint32_t page) {
    const BlockId block = cache_.insert(scope, prefix);
    if (block == 0) return;
    cache_.put(block, 0, page);
    blocks_[page] = block;
  }
  PrefixCache::Prefix prefix(const CacheScope& scope, int32_t token,
                             std::optional<uint32_t> before = {}) {
    token_ = token;
    const PrefixKey root = root_key(kSecret, scope.owner, scope.salt);
    return {next_key(kSecret, root, {&token_, 1}), before ? blocks_.at(*before) : 0, {&token_, 1}};
  }
  std::optional<uint32_t> find(const CacheScope& scope, int32_t token,
                               std::optional<uint32_t> before = {}) {
    return find(scope, prefix(scope, token, before));
  }
  std::optional<uint32_t> find(const CacheScope& scope, const PrefixCache::Prefix& prefix) {
    return cache_.page(cache_.find(scope, prefix), 0);
  }
  void forget(uint32_t page) { cache_.forget(blocks_.at(page)); }

  PrefixCache cache_{4, {{}}};
  std::map<uint32_t, BlockId> blocks_;  // that the pages were of last
  int32_t token_ = 0;
};

TEST_F(PrefixCacheTest, a_page_is_found_by_its_own_tenant_and_salt_alone) {
  const uint32_t page = insert(kAlice, 7);
  EXPECT_EQ(find(kAlice, 7), page);
  EXPECT_EQ(find(kAlice, 8), std::nullopt);
  EXPECT_EQ(find(kBob, 7), std::nullopt);
  EXPECT_EQ(find({"alice", "salt"}, 7), std::nullopt);
}

// Otherwise a tenant would see by what is not kept of its own that another has sent the same.
TEST_F(PrefixCacheTest, the_same_tokens_are_kept_for_every_tenant) {
  const uint32_t alices = insert(kAlice, 7);
  const uint32_t bobs = insert(kBob, 7);
  EXPECT_EQ(find(kAlice, 7), alices);
  EXPECT_EQ(find(kBob, 7), bobs);
}

// As if somebody had found two prefixes with one key.
TEST_F(PrefixCacheTest, the_key_alone_is_never_believed) {
  const uint32_t page = insert(kAlice, 7);
  const int32_t token = 7;
  const int32_t other_token = 8;
  const PrefixCache::Prefix stored = {prefix(kAlice, token).key, 0, {&token, 1}};
  EXPECT_EQ(find(kAlice, stored), page);
  EXPECT_EQ(cache_.find(kAlice, {stored.key, 0, {&other_token, 1}}), 0U);
  EXPECT_EQ(cache_.find(kBob, stored), 0U);
  const uint32_t elsewhere = insert(kAlice, 9);
  EXPECT_EQ(cache_.find(kAlice, {stored.key, blocks_.at(elsewhere), stored.tokens}), 0U);
  // And the second one is not stored under it.
  const uint32_t second = *cache_.take();
  make_known(kAlice, {stored.key, 0, {&other_token, 1}}, second);
  EXPECT_FALSE(cache_.knows(second));
  EXPECT_EQ(find(kAlice, stored), page);
}

// The events that the cache has told since the last call.
std::vector<CacheEvent> told(CacheEvents& events) {
  std::vector<CacheEvent> taken;
  EXPECT_TRUE(events.take(taken, std::chrono::milliseconds(0)));
  return taken;
}

TEST_F(PrefixCacheTest, what_becomes_known_is_told_and_what_is_forgotten) {
  using enum CacheEvent::Kind;
  CacheEvents events;
  cache_.tell(&events);
  const CacheScope salted = {"alice", "salt"};
  const uint32_t first = insert(salted, 1);
  const uint32_t second = insert(salted, 2, first);
  const uint32_t bobs = insert(kBob, 1);
  const std::vector<CacheEvent> stored = told(events);
  ASSERT_EQ(stored.size(), 3U);
  const auto hash_of = [&](uint32_t page) { return cache_.key(blocks_.at(page)).low; };
  EXPECT_EQ(stored[0], (CacheEvent{kStored, false, hash_of(first), {}, {1}, "salt"}));
  EXPECT_EQ(stored[1], (CacheEvent{kStored, false, hash_of(second), hash_of(first), {2}, ""}));
  EXPECT_EQ(stored[2], (CacheEvent{kStored, false, hash_of(bobs), {}, {1}, ""}));
  EXPECT_NE(stored[0].block, stored[2].block);
  const uint64_t before = hash_of(first);
  const uint64_t after = hash_of(second);
  forget(first);
  const std::vector<CacheEvent> removed = told(events);
  ASSERT_EQ(removed.size(), 2U);
  EXPECT_EQ(removed[0], (CacheEvent{.kind = kRemoved, .block = after}));
  EXPECT_EQ(removed[1], (CacheEvent{.kind = kRemoved, .block = before}));
  cache_.forget_all();
  EXPECT_EQ(told(events), std::vector{CacheEvent{.kind = kCleared}});
  for (const uint32_t page : {first, second, bobs}) cache_.release(page);
  cache_.reset();
  EXPECT_EQ(told(events), std::vector{CacheEvent{.kind = kCleared}});
}

TEST_F(PrefixCacheTest, a_block_that_makes_way_is_told_to_be_gone) {
  CacheEvents events;
  for (int32_t token = 1; token <= 4; ++token) cache_.release(insert(kAlice, token));
  cache_.tell(&events);
  const BlockId oldest = cache_.find(kAlice, prefix(kAlice, 1));
  const uint64_t hash = cache_.key(oldest).low;
  EXPECT_TRUE(cache_.take().has_value());
  EXPECT_EQ(told(events),
            (std::vector{CacheEvent{.kind = CacheEvent::Kind::kRemoved, .block = hash}}));
}

TEST_F(PrefixCacheTest, held_pages_are_shared_and_unknown_ones_are_free_when_released) {
  const uint32_t known = insert(kAlice, 1);
  const uint32_t unknown = *cache_.take();
  cache_.hold(known);
  cache_.release(known);
  EXPECT_FALSE(cache_.is_idle(known));
  cache_.release(known);
  EXPECT_TRUE(cache_.is_idle(known));
  cache_.release(unknown);
  EXPECT_EQ(cache_.idle_count(), 1U);
  EXPECT_EQ(cache_.pool().free_count(), 3U);
  cache_.hold(known);
  EXPECT_EQ(cache_.idle_count(), 0U);
  forget(known);
  EXPECT_EQ(find(kAlice, 1), std::nullopt);
  cache_.release(known);
  EXPECT_EQ(cache_.pool().free_count(), 4U);
}

TEST_F(PrefixCacheTest, what_was_not_used_for_the_longest_time_is_evicted_first) {
  const uint32_t first = insert(kAlice, 1);
  const uint32_t second = insert(kAlice, 2);
  const uint32_t third = insert(kAlice, 3);
  const uint32_t held = insert(kAlice, 4);
  for (const uint32_t page : {second, first, third}) cache_.release(page);
  cache_.hold(second);
  cache_.release(second);
  EXPECT_EQ(cache_.take(), first);
  EXPECT_EQ(find(kAlice, 1), std::nullopt);
  EXPECT_EQ(find(kAlice, 2), second);
  EXPECT_EQ(cache_.take(), third);
  EXPECT_EQ(cache_.take(), second);
  EXPECT_EQ(cache_.take(), std::nullopt);
  EXPECT_EQ(find(kAlice, 4), held);
  EXPECT_EQ(cache_.eviction_count(), 3U);
}

TEST_F(PrefixCacheTest, a_tenants_flood_leaves_the_others_their_share) {
  const uint32_t bobs = insert(kBob, 1);
  cache_.release(bobs);
  // Ten times as many as there is space for, all younger than the page of bob.
  for (int32_t token = 2; token < 42; ++token) cache_.release(insert(kAlice, token));
  EXPECT_EQ(find(kBob, 1), bobs);
  EXPECT_EQ(cache_.idle_count(), 4U);
}

TEST_F(PrefixCacheTest, a_page_whose_parent_was_forgotten_is_not_stored) {
  const uint32_t parent = insert(kAlice, 1);
  forget(parent);
  const uint32_t child = insert(kAlice, 2, parent);
  EXPECT_FALSE(cache_.knows(child));
}

// A page's number is used again; what depended on its contents before must not come back.
TEST_F(PrefixCacheTest, a_child_is_not_found_after_another_page_of_its_parents_number) {
  const uint32_t parent = insert(kAlice, 1);
  insert(kAlice, 2, parent);
  const BlockId gone = blocks_.at(parent);
  forget(parent);
  make_known(kAlice, prefix(kAlice, 3), parent);
  EXPECT_TRUE(cache_.knows(parent));
  EXPECT_NE(blocks_.at(parent), gone);
  EXPECT_EQ(find(kAlice, 2, parent), std::nullopt);
}

TEST_F(PrefixCacheTest, what_follows_a_forgotten_page_is_forgotten_with_it) {
  const uint32_t root = insert(kAlice, 1);
  const uint32_t idle = insert(kAlice, 2, root);
  const uint32_t held = insert(kAlice, 3, root);
  const uint32_t last = insert(kAlice, 4, held);
  for (const uint32_t page : {idle, last}) cache_.release(page);
  forget(held);
  EXPECT_TRUE(cache_.knows(root));
  EXPECT_TRUE(cache_.knows(idle));
  EXPECT_FALSE(cache_.knows(held));
  EXPECT_FALSE(cache_.knows(last));
  EXPECT_EQ(cache_.pool().free_count(), 1U);
  forget(root);
  EXPECT_FALSE(cache_.knows(idle));
  EXPECT_EQ(cache_.idle_count(), 0U);
  EXPECT_EQ(cache_.pool().free_count(), 2U);
  for (const uint32_t page : {held, root}) cache_.release(page);
  EXPECT_EQ(cache_.pool().free_count(), 4U);
}

// Two groups of layers: one sees all tokens, the other the last two.
class WindowedCacheTest : public ::testing::Test {
 protected:
  // A block of one token after another one, with a page of each group.
  BlockId insert(int32_t token, BlockId before) {
    const BlockId block = cache_.insert(kAlice, prefix(token, before));
    for (size_t group = 0; group < 2; ++group) {
      cache_.put(block, group, cache_.take().value());
    }
    return block;
  }
  PrefixCache::Prefix prefix(int32_t token, BlockId before) {
    token_ = token;
    const PrefixKey root = root_key(kSecret, "alice", "");
    return {next_key(kSecret, root, {&token_, 1}), before, {&token_, 1}};
  }
  void release(BlockId block, size_t group) { cache_.release(cache_.page(block, group).value()); }

  PrefixCache cache_{6, {{}, {2}}};
  int32_t token_ = 0;
};

TEST_F(WindowedCacheTest, a_block_stays_without_the_page_that_a_window_has_passed) {
  const BlockId first = insert(1, 0);
  const BlockId second = insert(2, first);
  insert(3, second);
  release(first, 1);
  ASSERT_TRUE(cache_.take().has_value());  // all others are held
  EXPECT_EQ(cache_.page(first, 1), std::nullopt);
  EXPECT_TRUE(cache_.page(first, 0).has_value());
  EXPECT_EQ(cache_.find(kAlice, prefix(1, 0)), first);
  EXPECT_EQ(cache_.find(kAlice, prefix(2, first)), second);
  EXPECT_EQ(cache_.take(), std::nullopt);
}

TEST_F(WindowedCacheTest, a_block_without_a_page_that_all_tokens_see_is_forgotten) {
  const BlockId first = insert(1, 0);
  const BlockId second = insert(2, first);
  for (const BlockId block : {second, first}) release(block, 0);
  release(second, 1);
  // Two that are free, then the one that was released first: the second block's, and with it that
  // block's other page.
  for (int taken = 0; taken < 3; ++taken) ASSERT_TRUE(cache_.take().has_value());
  EXPECT_EQ(cache_.find(kAlice, prefix(2, first)), 0U);
  EXPECT_EQ(cache_.find(kAlice, prefix(1, 0)), first);
  EXPECT_EQ(cache_.block_count(), 1U);
  EXPECT_EQ(cache_.pool().free_count(), 1U);
}

// A block that a window has passed is known as long as one that follows is.
TEST(WindowsAlone, leave_nothing_behind) {
  PrefixCache cache(2, {{1}});
  const PrefixKey root = root_key(kSecret, "alice", "");
  const std::array<int32_t, 2> tokens = {1, 2};
  const PrefixKey key = next_key(kSecret, root, {&tokens[0], 1});
  const BlockId first = cache.insert(kAlice, {key, 0, {&tokens[0], 1}});
  cache.put(first, 0, cache.take().value());
  const PrefixKey next = next_key(kSecret, key, {&tokens[1], 1});
  const BlockId second = cache.insert(kAlice, {next, first, {&tokens[1], 1}});
  cache.put(second, 0, cache.take().value());
  cache.release(cache.page(first, 0).value());
  const uint32_t last = cache.page(second, 0).value();
  ASSERT_TRUE(cache.take().has_value());  // the first block's page
  EXPECT_EQ(cache.find(kAlice, {next, first, {&tokens[1], 1}}), second);
  EXPECT_EQ(cache.block_count(), 2U);
  cache.release(last);
  EXPECT_EQ(cache.take(), last);
  EXPECT_EQ(cache.block_count(), 0U);
}

class CheckpointsOfBlocks : public ::testing::Test {
 protected:
  // Inserts a block of one token after another block; no sequence holds its page.
  BlockId block(const CacheScope& scope, int32_t token, BlockId before) {
    const uint32_t page = cache_.take().value();
    tokens_.push_back({token});
    const PrefixKey key = {static_cast<uint64_t>(token), before};
    const BlockId made = cache_.insert(scope, {key, before, tokens_.back()});
    cache_.put(made, 0, page);
    cache_.release(page);
    return made;
  }
  std::vector<BlockId> chain(const CacheScope& scope, int32_t first_token, size_t length) {
    std::vector<BlockId> blocks;
    for (size_t index = 0; index < length; ++index) {
      blocks.push_back(block(scope, first_token + static_cast<int32_t>(index),
                             blocks.empty() ? 0 : blocks.back()));
    }
    return blocks;
  }

  PrefixCache cache_{20, {{}}, 2};
  std::list<std::vector<int32_t>> tokens_;
};

TEST_F(CheckpointsOfBlocks, make_way_by_what_they_save_and_when_they_were_used) {
  const auto first = chain(kAlice, 0, 6);
  const auto second = chain(kAlice, 100, 1);
  ASSERT_TRUE(cache_.add_checkpoint(first[0]));
  ASSERT_TRUE(cache_.add_checkpoint(first[4]));
  ASSERT_TRUE(cache_.add_checkpoint(first[5]));
  EXPECT_FALSE(cache_.checkpoint(first[0])) << "it saved one page, as the first that was used";
  ASSERT_TRUE(cache_.add_checkpoint(second[0]));
  EXPECT_FALSE(cache_.checkpoint(first[5]));
  EXPECT_TRUE(cache_.checkpoint(first[4]));
  // While it is used it stays, however many others come; then it falls behind.
  for (const bool is_used : {true, false}) {
    for (int32_t round = 0; round < 6; ++round) {
      if (is_used) cache_.use_checkpoint(first[4]);
      const int32_t token = (is_used ? 200 : 300) + round;
      ASSERT_TRUE(cache_.add_checkpoint(chain(kAlice, token, 1).front()));
    }
    EXPECT_EQ(cache_.checkpoint(first[4]).has_value(), is_used);
  }
}

TEST_F(CheckpointsOfBlocks, of_the_owner_with_most_of_them_make_way) {
  PrefixCache cache(20, {{}}, 4);
  std::swap(cache, cache_);
  const auto alices = chain(kAlice, 0, 9);
  const auto bobs = chain(kBob, 100, 1);
  ASSERT_TRUE(cache_.add_checkpoint(bobs[0]));
  for (const size_t page : {2U, 5U, 8U}) ASSERT_TRUE(cache_.add_checkpoint(alices[page]));
  ASSERT_TRUE(cache_.add_checkpoint(alices[0]));
  EXPECT_TRUE(cache_.checkpoint(bobs[0])) << "it saves least, and is bob's only one";
  EXPECT_EQ(cache_.slots().checkpoint_count(), 4U);
}

TEST_F(CheckpointsOfBlocks, that_are_held_stay_and_are_free_when_their_block_is_forgotten) {
  const auto blocks = chain(kAlice, 0, 4);
  const uint32_t slot = cache_.add_checkpoint(blocks[0]).value();
  cache_.hold_slot(slot);
  const uint32_t own = cache_.take_slot().value();
  EXPECT_FALSE(cache_.take_slot()) << "one is a sequence's, one is about to be read";
  EXPECT_FALSE(cache_.add_checkpoint(blocks[2]));
  EXPECT_FALSE(cache_.move_checkpoint(blocks[0], blocks[2]));
  cache_.forget(blocks[0]);
  EXPECT_EQ(cache_.slots().checkpoint_count(), 0U);
  EXPECT_EQ(cache_.slots().pool().free_count(), 0U);
  cache_.release_slot(slot);
  cache_.release_slot(own);
  EXPECT_EQ(cache_.slots().pool().free_count(), 2U);
}

TEST_F(CheckpointsOfBlocks, move_from_block_to_block_unless_others_go_on_from_there) {
  const auto blocks = chain(kAlice, 0, 3);
  const uint32_t slot = cache_.add_checkpoint(blocks[0]).value();
  EXPECT_EQ(cache_.move_checkpoint(blocks[0], blocks[1]), slot);
  EXPECT_FALSE(cache_.checkpoint(blocks[0]));
  block(kAlice, 50, blocks[1]);
  EXPECT_FALSE(cache_.move_checkpoint(blocks[1], blocks[2]));
  EXPECT_EQ(cache_.checkpoint(blocks[1]), slot);
}

}  // namespace
}  // namespace lockstep
