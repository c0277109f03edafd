// The blocks that a reader of the prefix cache's events takes for known; that events go together is
// checked on the way.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/base/cache_events.h"

namespace lockstep {

class ToldBlocks {
 public:
  // Reads what has come. Failures are GoogleTest's.
  void read(CacheEvents& events, size_t page_tokens) {
    std::vector<CacheEvent> taken;
    EXPECT_TRUE(events.take(taken, std::chrono::milliseconds(0)));
    for (const CacheEvent& event : taken) {
      EXPECT_FALSE(event.is_after_gap);
      if (event.kind == CacheEvent::Kind::kRemoved) {
        EXPECT_EQ(known_.erase(event.block), 1U) << "a block is removed that was not stored";
        EXPECT_FALSE(is_before_another(event.block)) << "what follows a removed block is known";
        continue;
      }
      EXPECT_EQ(event.kind, CacheEvent::Kind::kStored);
      EXPECT_EQ(event.tokens.size(), page_tokens);
      EXPECT_TRUE(!event.before || known_.contains(*event.before)) << "what lies before is unknown";
      EXPECT_TRUE(known_.emplace(event.block, event.before).second) << "a block is stored twice";
    }
  }

  size_t count() const { return known_.size(); }

 private:
  bool is_before_another(uint64_t block) const {
    return std::ranges::any_of(known_, [&](const auto& one) { return one.second == block; });
  }

  std::map<uint64_t, std::optional<uint64_t>> known_;  // and the block before each
};

}  // namespace lockstep
