// Records in a directory: what is written comes back, or nothing does; whatever happens to the
// files.
#include "engine/tiers/file_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/tiers/page_parts.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

class FileTierTest : public testing::Test {
 protected:
  FileTier::Settings settings(uint64_t records_max = 100) const {
    return {.directory = folder_ / "cache",
            .bytes_max = records_max * record_bytes(page_.parts()),
            .identity = "a model"};
  }
  std::unique_ptr<FileTier> open() { return open(settings()); }
  std::unique_ptr<FileTier> open(const FileTier::Settings& settings) {
    auto tier = FileTier::open(settings);
    EXPECT_TRUE(tier.has_value()) << tier.error().message;
    return std::move(*tier);
  }
  bool write(FileTier& tier, uint64_t number) {
    page_.fill(number);
    return tier.write(stored_key(number), page_.parts());
  }
  // Whether the record is there; its bytes must be its own.
  bool reads(FileTier& tier, uint64_t number) {
    page_.fill(number + 1);
    if (!tier.read(stored_key(number), page_.parts())) return false;
    EXPECT_TRUE(page_.holds(number)) << number;
    return true;
  }
  std::vector<std::filesystem::path> records() const {
    std::vector<std::filesystem::path> found;
    for (const auto& file : std::filesystem::directory_iterator(settings().directory)) {
      if (file.path().extension() == ".page") found.push_back(file.path());
    }
    return found;
  }

  test::Folder folder_;
  PageParts page_;
};

TEST_F(FileTierTest, what_is_written_is_read_by_this_process_and_the_next) {
  {
    const auto tier = open();
    EXPECT_FALSE(reads(*tier, 1));
    EXPECT_TRUE(write(*tier, 1));
    EXPECT_TRUE(write(*tier, 2));
    EXPECT_TRUE(reads(*tier, 1));
    EXPECT_FALSE(tier->contains(stored_key(1, 1))) << "a page of another group";
    tier->erase(stored_key(2));
    EXPECT_FALSE(reads(*tier, 2));
  }
  const auto tier = open();
  EXPECT_EQ(tier->statistics().records, 1U);
  EXPECT_TRUE(tier->contains(stored_key(1)));
  EXPECT_TRUE(reads(*tier, 1));
  EXPECT_FALSE(reads(*tier, 2));
}

TEST_F(FileTierTest, directory_and_files_are_their_owners_alone) {
  std::filesystem::create_directory(settings().directory);
  std::filesystem::permissions(settings().directory, std::filesystem::perms(0755));
  const auto tier = open();
  write(*tier, 1);
  struct stat status {};
  ASSERT_EQ(::stat(settings().directory.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0700U);
  for (const auto& file : std::filesystem::directory_iterator(settings().directory)) {
    ASSERT_EQ(::stat(file.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0600U) << file.path();
  }
}

// Nothing of one identity is found or believed under another, even if a file is given its name.
TEST_F(FileTierTest, other_models_have_other_hashes_and_tags) {
  HashSecret secret;
  {
    const auto tier = open();
    secret = tier->hash_secret();
    write(*tier, 1);
  }
  EXPECT_EQ(open()->hash_secret(), secret);
  auto other_settings = settings();
  other_settings.identity = "another model";
  const auto other = open(other_settings);
  EXPECT_NE(other->hash_secret(), secret);
  EXPECT_FALSE(reads(*other, 1));
  EXPECT_EQ(other->statistics().unusable, 1U);
}

TEST_F(FileTierTest, the_oldest_use_makes_way_also_after_a_restart) {
  {
    const auto tier = open(settings(3));
    for (const uint64_t number : {1U, 2U, 3U}) {
      EXPECT_TRUE(write(*tier, number));
      // As if it had been long ago: files' times are the order.
      for (const auto& file : records()) {
        const auto time = std::filesystem::last_write_time(file);
        std::filesystem::last_write_time(file, time - std::chrono::hours(1));
      }
    }
    EXPECT_TRUE(reads(*tier, 1));
  }
  const auto tier = open(settings(3));
  EXPECT_TRUE(write(*tier, 4));
  EXPECT_FALSE(tier->contains(stored_key(2)));
  for (const uint64_t number : {1U, 3U, 4U}) EXPECT_TRUE(reads(*tier, number)) << number;
  EXPECT_EQ(records().size(), 3U);
  EXPECT_EQ(tier->statistics().bytes, 3 * record_bytes(page_.parts()));
  EXPECT_EQ(tier->statistics().evictions, 1U);
}

// However much one owner writes, the others keep what is at most their share.
TEST_F(FileTierTest, an_owner_with_more_than_the_mean_makes_way_first) {
  const auto key_of = [](uint64_t owner, uint64_t number) {
    StoredKey key = stored_key(100 * owner + number);
    key.owner = owner;
    return key;
  };
  const auto count = [&](const FileTier& tier, uint64_t owner) {
    size_t found = 0;
    for (uint64_t number = 0; number < 100; ++number) {
      found += tier.contains(key_of(owner, number)) ? 1 : 0;
    }
    return found;
  };
  const auto write_as = [&](FileTier& tier, uint64_t owner, uint64_t begin, uint64_t end) {
    for (uint64_t number = begin; number < end; ++number) {
      EXPECT_TRUE(tier.write(key_of(owner, number), page_.parts()));
    }
  };
  {
    const auto tier = open(settings(9));
    write_as(*tier, 1, 0, 2);
    write_as(*tier, 2, 0, 20);
    EXPECT_EQ(count(*tier, 1), 2U) << "the oldest, and another's";
    EXPECT_EQ(count(*tier, 2), 7U);
    EXPECT_TRUE(tier->contains(key_of(2, 19)) && !tier->contains(key_of(2, 12)));
  }
  const auto tier = open(settings(9));
  write_as(*tier, 2, 20, 40);
  EXPECT_EQ(count(*tier, 1), 2U) << "names tell whose they are";
  write_as(*tier, 3, 0, 20);
  EXPECT_EQ(count(*tier, 1), 2U);
  EXPECT_EQ(count(*tier, 2) + count(*tier, 3), 7U);
  EXPECT_GE(count(*tier, 2), 2U) << "the mean is three";
  EXPECT_GE(count(*tier, 3), 2U);
}

TEST_F(FileTierTest, a_smaller_quota_is_heeded_at_the_start) {
  {
    const auto tier = open();
    for (uint64_t number = 0; number < 8; ++number) write(*tier, number);
  }
  const auto tier = open(settings(2));
  EXPECT_EQ(tier->statistics().records, 2U);
  EXPECT_EQ(records().size(), 2U);
  auto none = settings();
  none.bytes_max = 1;
  auto moved = none;
  moved.directory = folder_ / "other";
  EXPECT_FALSE(write(*open(moved), 1)) << "larger than all";
}

TEST_F(FileTierTest, an_hour_has_a_limit) {
  auto limited = settings();
  limited.hourly_bytes_max = 2 * record_bytes(page_.parts());
  const auto tier = open(limited);
  EXPECT_TRUE(write(*tier, 1));
  EXPECT_TRUE(write(*tier, 2));
  EXPECT_FALSE(write(*tier, 3));
  EXPECT_EQ(tier->statistics().writes_left_out, 1U);
}

TEST_F(FileTierTest, every_flipped_byte_of_the_header_and_some_of_the_rest_are_seen) {
  {
    const auto tier = open();
    write(*tier, 1);
  }
  const std::filesystem::path file = records().at(0);
  std::string bytes;
  {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::vector<size_t> places;
  for (size_t place = 0; place < 128; ++place) places.push_back(place);
  for (size_t place = kRecordBlockBytes; place < bytes.size(); place += 777) {
    places.push_back(place);
  }
  places.push_back(bytes.size() - 1);
  for (const size_t place : places) {
    std::string changed = bytes;
    changed[place] = static_cast<char>(changed[place] ^ 0x10);
    // The same file: its mode is that of the first.
    std::ofstream(file, std::ios::binary) << changed;
    std::filesystem::permissions(file, std::filesystem::perms(0600));
    const auto tier = open();
    EXPECT_FALSE(reads(*tier, 1)) << place;
    EXPECT_EQ(tier->statistics().unusable, 1U);
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST_F(FileTierTest, torn_foreign_and_odd_files_are_left_out) {
  {
    const auto tier = open();
    for (const uint64_t number : {1U, 2U, 3U, 4U}) write(*tier, number);
  }
  const auto file_of = [&](uint64_t number) {
    return settings().directory / fmt::format("{:016x}{:016x}-0-{:016x}.page", ~number, number, 0);
  };
  std::filesystem::resize_file(file_of(1), record_bytes(page_.parts()) - 1);
  std::filesystem::permissions(file_of(2), std::filesystem::perms(0640));
  std::filesystem::remove(file_of(3));
  std::filesystem::create_symlink(file_of(4), file_of(3));
  std::ofstream(settings().directory / "new-17") << "left by a process that was killed";
  std::ofstream(settings().directory / "notes.txt") << "not ours";
  std::filesystem::create_directory(settings().directory / "folder.page");
  const auto tier = open();
  EXPECT_FALSE(reads(*tier, 1));
  EXPECT_FALSE(reads(*tier, 2));
  EXPECT_FALSE(reads(*tier, 3));
  EXPECT_TRUE(reads(*tier, 4));
  EXPECT_FALSE(std::filesystem::exists(settings().directory / "new-17"));
  EXPECT_TRUE(std::filesystem::exists(settings().directory / "notes.txt"));
  // A record that was removed can be written again.
  EXPECT_TRUE(write(*tier, 1));
  EXPECT_TRUE(reads(*tier, 1));
}

TEST_F(FileTierTest, another_users_directory_or_key_is_refused_and_a_torn_key_made_anew) {
  write(*open(), 1);
  const std::filesystem::path key = settings().directory / "key";
  std::filesystem::permissions(key, std::filesystem::perms(0644));
  EXPECT_FALSE(FileTier::open(settings()).has_value());
  std::filesystem::permissions(key, std::filesystem::perms(0600));
  std::filesystem::resize_file(key, 31);
  const auto tier = open();
  EXPECT_FALSE(reads(*tier, 1)) << "the secret is another one";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  auto foreign = settings();
  foreign.directory = folder_ / "foreign";
  std::filesystem::create_directory(foreign.directory);
  ASSERT_EQ(::chown(foreign.directory.c_str(), 1, 1), 0);
  const auto refused = FileTier::open(foreign);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("owned by user 1"), std::string::npos);
}

TEST_F(FileTierTest, a_second_process_is_refused_while_the_first_lives) {
  auto tier = open();
  EXPECT_FALSE(FileTier::open(settings()).has_value());
  tier.reset();
  EXPECT_TRUE(FileTier::open(settings()).has_value());
}

// A write that is cut off by a limit on files' sizes, as on a full disk.
TEST_F(FileTierTest, a_full_disk_and_one_that_is_gone_cost_nothing_but_the_record) {
  const auto tier = open();
  EXPECT_TRUE(write(*tier, 1));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {kRecordBlockBytes, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const bool written = write(*tier, 2);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(written);
  EXPECT_EQ(tier->statistics().write_failures, 1U);
  EXPECT_EQ(records().size(), 1U);
  EXPECT_TRUE(reads(*tier, 1));
  EXPECT_FALSE(write(*tier, 2)) << "writing pauses after a failure";
  std::filesystem::remove_all(settings().directory);
  EXPECT_FALSE(reads(*tier, 1));
  EXPECT_FALSE(tier->contains(stored_key(1)));
}

// A child writes, reads and removes until it is killed, again and again: what it leaves is whole or
// not believed, and the next one begins.
TEST_F(FileTierTest, killed_processes_leave_no_wrong_page_and_no_refusal) {
  constexpr int kKills = 1000;
  constexpr uint64_t kNumbers = 24;
  uint64_t found = 0;
  uint64_t unusable = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto tier = FileTier::open(settings(12));
      if (!tier) ::_exit(1);
      for (uint64_t turn = 0;; ++turn) {
        const uint64_t number = (turn * 7 + static_cast<uint64_t>(kill)) % kNumbers;
        page_.fill(number);
        (*tier)->write(stored_key(number), page_.parts());
        if (turn == 0 && ::write(ready[1], "x", 1) != 1) ::_exit(1);
      }
    }
    char started = 0;
    ASSERT_EQ(::read(ready[0], &started, 1), 1) << "the child was refused at start " << kill;
    std::this_thread::sleep_for(std::chrono::microseconds(kill * 37 % 3000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    if (kill % 20 != 0) continue;
    const auto tier = open(settings(12));
    for (uint64_t number = 0; number < kNumbers; ++number) found += reads(*tier, number) ? 1 : 0;
    unusable += tier->statistics().unusable;
  }
  EXPECT_GE(found, 50U) << "each has written one at least";
  EXPECT_EQ(unusable, 0U) << "a process that is killed leaves no torn record under its name";
}

}  // namespace
}  // namespace lockstep
