// Arenas that outlive their mapping: sealed, known again, taken over, freed.
#include "engine/machine/kept_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "engine/machine/node_memory.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 6U << 20U;

Result<NodeMemory> take_shared() {
  return NodeMemory::allocate(
      {.bytes = kBytes, .what = "weights", .shared = true, .small_shared = true});
}

void fill(const NodeMemory& memory, size_t seed) {
  for (size_t index = 0; index < memory.size_bytes(); ++index) {
    memory.data()[index] = static_cast<std::byte>(index * 31 + index / 4096 + seed);
  }
}

KeptArena kept(const NodeMemory& memory) {
  return {Descriptor(::dup(memory.descriptor())), memory.size_bytes(), memory.is_sealed()};
}

TEST(KeptMemory, sealed_memory_stays_where_it_is_and_nobody_can_write_to_it) {
  auto memory = take_shared();
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  ASSERT_GE(memory->descriptor(), 0);
  fill(*memory, 1);
  const std::byte* const before = memory->data();
  const std::byte value = memory->data()[kBytes - 1];
  const int writable = ::dup(memory->descriptor());
  ASSERT_TRUE(memory->seal(nullptr).has_value());
  EXPECT_TRUE(memory->is_sealed());
  EXPECT_EQ(memory->data(), before);
  EXPECT_EQ(memory->data()[kBytes - 1], value);

  const char byte = 7;
  EXPECT_EQ(::pwrite(writable, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, writable, 0), MAP_FAILED);
  EXPECT_EQ(::ftruncate(writable, 2 * kBytes), -1);
  EXPECT_NE(::fcntl(writable, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_DEATH(memory->data()[0] = std::byte{1}, "");
  const auto facts = examine_memfd(writable);
  ASSERT_TRUE(facts.has_value());
  EXPECT_TRUE(facts->sealed);
  EXPECT_EQ(facts->bytes, memory->size_bytes());
  ::close(writable);
}

// Bytes of this process that are locked in memory.
size_t locked_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmLck:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

TEST(KeptMemory, locked_memory_stays_locked_when_it_is_sealed_and_taken_over) {
  const size_t before = locked_bytes();
  auto memory = NodeMemory::allocate(
      {.bytes = kBytes, .what = "a test", .shared = true, .small_shared = true, .lock = true});
  if (!memory) GTEST_SKIP() << memory.error().message;
  EXPECT_TRUE(memory->is_locked());
  EXPECT_EQ(locked_bytes() - before, memory->size_bytes());
  ASSERT_TRUE(memory->seal(nullptr).has_value());
  EXPECT_EQ(locked_bytes() - before, memory->size_bytes());
  KeptArena arena = kept(*memory);
  *memory = NodeMemory();
  EXPECT_EQ(locked_bytes(), before);
  const auto taken = NodeMemory::adopt(std::move(arena), {.what = "weights", .lock = true});
  ASSERT_TRUE(taken.has_value()) << taken.error().message;
  EXPECT_EQ(locked_bytes() - before, taken->size_bytes());
}

TEST(KeptMemory, what_is_taken_over_has_its_bytes_and_survives_those_who_made_it) {
  for (const bool sealed : {true, false}) {
    KeptArena arena;
    std::string digest;
    {
      auto memory = take_shared();
      ASSERT_TRUE(memory.has_value()) << memory.error().message;
      fill(*memory, 2);
      if (sealed) {
        ASSERT_TRUE(memory->seal(nullptr).has_value());
      }
      arena = kept(*memory);
      digest = *sample_digest(memory->descriptor(), memory->size_bytes());
    }
    EXPECT_EQ(*sample_digest(arena.descriptor.number(), arena.bytes), digest);
    const auto taken = NodeMemory::adopt(std::move(arena), {.what = "weights"});
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    EXPECT_EQ(taken->is_sealed(), sealed);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(taken->data()) % (2U << 20U), 0U);
    for (size_t index = 0; index < kBytes; index += 997) {
      ASSERT_EQ(taken->data()[index], static_cast<std::byte>(index * 31 + index / 4096 + 2));
    }
    if (!sealed) taken->data()[5] = std::byte{9};
    // Once more: a third process.
    const auto again = NodeMemory::adopt(kept(*taken), {.what = "weights"});
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_EQ(again->data()[5], sealed ? static_cast<std::byte>(5 * 31 + 2) : std::byte{9});
  }
}

TEST(KeptMemory, what_is_not_as_it_was_kept_is_not_taken_over) {
  auto memory = take_shared();
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  KeptArena longer = kept(*memory);
  longer.bytes += 2U << 20U;
  EXPECT_FALSE(NodeMemory::adopt(std::move(longer), {.what = "weights"}).has_value());
  KeptArena sealed = kept(*memory);
  sealed.sealed = true;
  EXPECT_FALSE(NodeMemory::adopt(std::move(sealed), {.what = "weights"}).has_value());
  const auto none = NodeMemory::adopt({Descriptor(), kBytes, false}, {.what = "weights"});
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(none.error().message, HasSubstr("weights"));
  EXPECT_FALSE(examine_memfd(0).has_value() && examine_memfd(0)->sealed);
}

TEST(KeptMemory, what_is_freed_is_free_whoever_else_has_the_descriptor) {
  auto memory = take_shared();
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  fill(*memory, 3);
  ASSERT_TRUE(memory->seal(nullptr).has_value());
  const int one = ::dup(memory->descriptor());
  *memory = NodeMemory();
  const int other = ::dup(one);
  struct stat status {};
  ASSERT_EQ(::fstat(other, &status), 0);
  EXPECT_GT(status.st_blocks, 0);
  free_memfd(one);
  ASSERT_EQ(::fstat(other, &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_EQ(status.st_size, 0);
  ::close(one);
  ::close(other);
}

TEST(KeptMemory, samples_tell_memory_apart_that_differs_in_one_place_of_them) {
  auto memory = take_shared();
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  fill(*memory, 4);
  const size_t bytes = memory->size_bytes();
  const auto digest = [&] { return *sample_digest(memory->descriptor(), bytes); };
  const std::string before = digest();
  EXPECT_EQ(before.size(), 64U);
  for (const size_t place : {size_t{0}, (bytes - 4096) / 63 * 30 + 17}) {
    memory->data()[place] ^= std::byte{1};
    EXPECT_NE(digest(), before) << place;
    memory->data()[place] ^= std::byte{1};
  }
  EXPECT_EQ(digest(), before);
}

TEST(KeptMemory, a_text_comes_back_from_sealed_memory_only) {
  const std::string text(5000, 'x');
  const auto made = make_sealed_text("a test", text);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_EQ(*read_sealed_text(made->number(), 1U << 20U), text);
  EXPECT_FALSE(read_sealed_text(made->number(), 4999).has_value());
  EXPECT_EQ(::ftruncate(made->number(), 0), -1);
  const Descriptor open(::memfd_create("a test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_FALSE(read_sealed_text(open.number(), 1U << 20U).has_value());
}

}  // namespace
}  // namespace lockstep
