// Pages in memory and in files behind it, beside a cache whose pages are a few bytes.
#include "engine/tiers/page_tiers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "tests/engine/tiers/page_parts.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kLong{60};

// A cache of two ranks, whose pages hold a number each.
class FakePages final : public PageCopier {
 public:
  std::vector<Part> parts(StoredKind kind) const override {
    if (kind == StoredKind::kPage) return {{100, -1}, {5000, -1}};
    return has_states ? std::vector<Part>{{0, -1}, {3 * kRecordBlockBytes, -1}}
                      : std::vector<Part>{{0, -1}, {0, -1}};
  }
  void copy_out(StoredKind kind, uint32_t page, std::span<const std::span<std::byte>> to) override {
    if (kind == StoredKind::kState) return copy_state(to[1].data(), &states.at(page));
    for (const std::span<std::byte> part : to) {
      std::memcpy(part.data(), &pages.at(page), sizeof(uint64_t));
    }
  }
  void copy_in(StoredKind kind, uint32_t page,
               std::span<const std::span<std::byte>> from) override {
    if (kind == StoredKind::kState) return copy_state(&states.at(page), from[1].data());
    for (const std::span<std::byte> part : from) {
      uint64_t number = 0;
      std::memcpy(&number, part.data(), sizeof number);
      EXPECT_TRUE(part.data() == from[0].data() || number == pages.at(page));
      pages.at(page) = number;
    }
  }

  void copy_states(std::span<const SlotCopy> copies) override {
    for (const SlotCopy& copy : copies) states.at(copy.to) = states.at(copy.from);
  }

  bool has_states = false;
  std::vector<uint64_t> pages = std::vector<uint64_t>(4);
  std::vector<uint64_t> states = std::vector<uint64_t>(4);

 private:
  static void copy_state(void* to, const void* from) { std::memcpy(to, from, sizeof(uint64_t)); }
};

constexpr uint64_t kSlotBytes = 3 * kRecordBlockBytes;

class PageTiersTest : public testing::Test {
 protected:
  std::unique_ptr<PageTiers> make(size_t slots, bool with_files, uint64_t records_max = 1000) {
    std::unique_ptr<FileTier> files;
    if (with_files) {
      auto opened = FileTier::open({.directory = folder_ / "cache",
                                    .bytes_max = records_max * (kSlotBytes + kRecordBlockBytes),
                                    .identity = "a model"});
      EXPECT_TRUE(opened.has_value()) << opened.error().message;
      files = std::move(*opened);
    }
    auto made = PageTiers::make(cache_, slots * kSlotBytes, std::move(files));
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return std::move(*made);
  }
  bool save(PageTiers& tiers, uint64_t number, bool makes_way = true) {
    cache_.pages[1] = number * 1000;
    return tiers.save(stored_key(number), 1, makes_way);
  }
  // The number that a page gets; none if nothing is at hand.
  std::optional<uint64_t> load(PageTiers& tiers, uint64_t number) {
    cache_.pages[2] = 0;
    if (!tiers.load(stored_key(number), 2)) return std::nullopt;
    return cache_.pages[2] / 1000;
  }
  static PageStore::Answer wait_for(PageTiers& tiers, uint64_t number) {
    PageStore::Answer answer = tiers.ask(stored_key(number));
    while (answer == PageStore::Answer::kComing) {
      EXPECT_TRUE(tiers.settle(kLong));
      answer = tiers.ask(stored_key(number));
    }
    return answer;
  }

  test::Folder folder_;
  FakePages cache_;
};

TEST_F(PageTiersTest, memory_alone_keeps_what_was_used_last) {
  const auto tiers = make(3, false);
  for (const uint64_t number : {1U, 2U, 3U}) EXPECT_TRUE(save(*tiers, number));
  EXPECT_EQ(load(*tiers, 1), 1U);
  EXPECT_TRUE(save(*tiers, 4));
  EXPECT_FALSE(tiers->contains(stored_key(2)));
  EXPECT_EQ(tiers->ask(stored_key(2)), PageStore::Answer::kAbsent);
  for (const uint64_t number : {1U, 3U, 4U}) EXPECT_EQ(load(*tiers, number), number);
  tiers->erase(stored_key(3));
  EXPECT_EQ(load(*tiers, 3), std::nullopt);
  EXPECT_EQ(tiers->counters().memory_hits, 4U);
  EXPECT_FALSE(tiers->outlives_process());
}

TEST_F(PageTiersTest, files_keep_what_memory_has_no_space_for_and_the_next_process_reads_them) {
  constexpr uint64_t kPages = 5 * PageTiers::kSlotsLeast;
  {
    const auto tiers = make(0, true);
    for (uint64_t number = 1; number <= kPages; ++number) {
      while (!save(*tiers, number)) EXPECT_TRUE(tiers->settle(kLong));
    }
    EXPECT_TRUE(tiers->settle(kLong));
    EXPECT_EQ(tiers->file_statistics().records, kPages);
  }
  const auto tiers = make(0, true);
  for (uint64_t number = 1; number <= kPages; ++number) {
    EXPECT_EQ(tiers->ask(stored_key(number)), PageStore::Answer::kComing);
    EXPECT_EQ(wait_for(*tiers, number), PageStore::Answer::kHere);
    EXPECT_EQ(load(*tiers, number), number);
  }
  EXPECT_EQ(tiers->counters().file_hits, kPages);
  EXPECT_EQ(tiers->counters().memory_hits, 0U);
}

// Reads that are asked for before they are needed take half of the slots at most.
TEST_F(PageTiersTest, reading_ahead_leaves_slots_for_saving) {
  {
    const auto tiers = make(0, true);
    for (uint64_t number = 1; number <= 40; ++number) {
      while (!save(*tiers, number)) EXPECT_TRUE(tiers->settle(kLong));
    }
    EXPECT_TRUE(tiers->settle(kLong));
  }
  const auto tiers = make(0, true);
  for (uint64_t number = 1; number <= 40; ++number) {
    EXPECT_EQ(tiers->ask(stored_key(number)), PageStore::Answer::kComing);
  }
  EXPECT_TRUE(save(*tiers, 100));
  EXPECT_TRUE(tiers->settle(kLong));
}

TEST_F(PageTiersTest, what_the_cache_still_has_makes_way_in_memory_first) {
  const auto tiers = make(PageTiers::kSlotsLeast, true);
  for (uint64_t number = 1; number <= PageTiers::kSlotsLeast; ++number) {
    EXPECT_TRUE(save(*tiers, number, /*makes_way=*/number % 2 == 0));
    EXPECT_TRUE(tiers->settle(kLong));
  }
  for (uint64_t number = 101; number <= 100 + PageTiers::kSlotsLeast / 2; ++number) {
    EXPECT_TRUE(save(*tiers, number));
  }
  EXPECT_TRUE(tiers->settle(kLong));
  for (uint64_t number = 1; number <= PageTiers::kSlotsLeast; ++number) {
    EXPECT_EQ(load(*tiers, number).has_value(), number % 2 == 0) << number;
    EXPECT_TRUE(tiers->contains(stored_key(number))) << "its file is there";
  }
}

TEST_F(PageTiersTest, what_is_erased_while_it_is_written_or_read_does_not_come_back) {
  const auto tiers = make(0, true);
  for (uint64_t number = 1; number <= 200; ++number) {
    while (!save(*tiers, number)) EXPECT_TRUE(tiers->settle(kLong));
    if (number % 3 == 0) {
      EXPECT_TRUE(tiers->settle(kLong));
    }
    if (number % 3 == 1) tiers->ask(stored_key(number));
    tiers->erase(stored_key(number));
    EXPECT_FALSE(tiers->contains(stored_key(number)));
    EXPECT_EQ(load(*tiers, number), std::nullopt);
  }
  EXPECT_TRUE(tiers->settle(kLong));
  for (uint64_t number = 1; number <= 200; ++number) {
    EXPECT_FALSE(tiers->contains(stored_key(number))) << number;
  }
  EXPECT_EQ(tiers->file_statistics().records, 0U);
}

// They have memory of their own, and other names.
TEST_F(PageTiersTest, states_are_kept_beside_pages_and_take_no_place_of_theirs) {
  cache_.has_states = true;
  const auto state = [](uint64_t number) {
    StoredKey key = stored_key(number);
    key.kind = StoredKind::kState;
    return key;
  };
  const auto save_state = [&](PageTiers& tiers, uint64_t number) {
    cache_.states[1] = number * 1000 + 1;
    while (!tiers.save(state(number), 1, /*makes_way=*/true)) EXPECT_TRUE(tiers.settle(kLong));
  };
  const auto load_state = [&](PageTiers& tiers, uint64_t number) {
    cache_.states[2] = 0;
    return tiers.load(state(number), 2) ? cache_.states[2] : 0;
  };
  {
    const auto memory = make(8, false);  // six pages, and two states of the same size
    for (uint64_t number = 1; number <= 6; ++number) EXPECT_TRUE(save(*memory, number));
    for (uint64_t number = 1; number <= 3; ++number) save_state(*memory, number);
    for (uint64_t number = 1; number <= 6; ++number) EXPECT_EQ(load(*memory, number), number);
    EXPECT_FALSE(memory->contains(state(1)));
    EXPECT_EQ(load_state(*memory, 2), 2001U);
    EXPECT_EQ(load_state(*memory, 3), 3001U);
    EXPECT_EQ(memory->counters(StoredKind::kState).memory_hits, 2U);
    EXPECT_EQ(memory->counters(StoredKind::kPage).memory_hits, 6U);
  }
  {
    const auto tiers = make(0, true);
    EXPECT_TRUE(save(*tiers, 5));
    for (uint64_t number = 1; number <= 9; ++number) save_state(*tiers, number);
    EXPECT_TRUE(tiers->settle(kLong));
    EXPECT_EQ(tiers->file_statistics().records, 10U);
  }
  const auto tiers = make(0, true);
  EXPECT_EQ(tiers->file_statistics().records, 10U);
  EXPECT_EQ(wait_for(*tiers, 5), PageStore::Answer::kHere);
  EXPECT_EQ(load(*tiers, 5), 5U);
  EXPECT_FALSE(tiers->contains(stored_key(4)));
  for (uint64_t number = 1; number <= 9; ++number) {
    while (tiers->ask(state(number)) == PageStore::Answer::kComing) {
      EXPECT_TRUE(tiers->settle(kLong));
    }
    EXPECT_EQ(load_state(*tiers, number), number * 1000 + 1);
  }
  EXPECT_EQ(tiers->counters(StoredKind::kState).file_hits, 9U);
  tiers->erase(state(9));
  EXPECT_EQ(load_state(*tiers, 9), 0U);
}

// A record that is not what it should be is as if it had never been there.
TEST_F(PageTiersTest, a_damaged_file_ends_in_no_answer) {
  {
    const auto tiers = make(0, true);
    save(*tiers, 1);
    save(*tiers, 2);
    EXPECT_TRUE(tiers->settle(kLong));
  }
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "cache")) {
    if (file.path().extension() != ".page") continue;
    const uint64_t bytes = std::filesystem::file_size(file.path());
    std::filesystem::resize_file(file.path(), bytes / 2);
    std::filesystem::resize_file(file.path(), bytes);
  }
  const auto tiers = make(0, true);
  EXPECT_EQ(wait_for(*tiers, 1), PageStore::Answer::kAbsent);
  EXPECT_EQ(load(*tiers, 1), std::nullopt);
  EXPECT_TRUE(save(*tiers, 1));
  EXPECT_EQ(load(*tiers, 1), 1U);
}

}  // namespace
}  // namespace lockstep
