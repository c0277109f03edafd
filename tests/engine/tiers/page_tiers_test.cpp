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
  std::vector<Part> parts() const override { return {{100, -1}, {5000, -1}}; }
  void copy_out(uint32_t page, std::span<const std::span<std::byte>> to) override {
    for (const std::span<std::byte> part : to) {
      std::memcpy(part.data(), &pages.at(page), sizeof(uint64_t));
    }
  }
  void copy_in(uint32_t page, std::span<const std::span<std::byte>> from) override {
    for (const std::span<std::byte> part : from) {
      uint64_t number = 0;
      std::memcpy(&number, part.data(), sizeof number);
      EXPECT_TRUE(part.data() == from[0].data() || number == pages.at(page));
      pages.at(page) = number;
    }
  }

  std::vector<uint64_t> pages = std::vector<uint64_t>(4);
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
