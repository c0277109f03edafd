#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/graph/activation_buffers.h"

namespace lockstep {
namespace {

TEST(ScratchAllocator, a_released_stretch_is_used_again_and_neighbours_merge) {
  ScratchAllocator allocator;
  const size_t a = allocator.allocate(100);
  const size_t b = allocator.allocate(100);
  const size_t c = allocator.allocate(100);
  EXPECT_EQ(allocator.size_bytes(), 3 * 128U);
  allocator.release(a);
  allocator.release(b);
  EXPECT_EQ(allocator.allocate(256), a);
  EXPECT_EQ(allocator.size_bytes(), 3 * 128U);
  allocator.release(c);
}

TEST(ScratchAllocator, live_stretches_never_overlap) {
  std::mt19937 random(7);
  ScratchAllocator allocator;
  std::map<size_t, size_t> live;
  for (int round = 0; round < 5000; ++round) {
    if (live.empty() || random() % 2 == 0) {
      const size_t bytes = 1 + random() % 1000;
      const size_t offset = allocator.allocate(bytes);
      EXPECT_EQ(offset % 64, 0U);
      const auto next = live.lower_bound(offset);
      EXPECT_TRUE(next == live.end() || offset + bytes <= next->first);
      if (next != live.begin()) {
        const auto before = std::prev(next);
        EXPECT_LE(before->first + before->second, offset);
      }
      EXPECT_LE(offset + bytes, allocator.size_bytes());
      live.emplace(offset, bytes);
    } else {
      auto chosen = live.begin();
      std::advance(chosen, random() % live.size());
      allocator.release(chosen->first);
      live.erase(chosen);
    }
  }
}

}  // namespace
}  // namespace lockstep
