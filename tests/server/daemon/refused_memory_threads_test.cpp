// Threads of the daemon that serve no request are refused memory: they leave out what they would
// have said, and go on.
#include <gtest/gtest.h>
#include <pthread.h>
#include <spdlog/details/log_msg.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "server/access/key_limits.h"
#include "server/daemon/log_output.h"
#include "server/daemon/reloads.h"
#include "server/daemon/watchdog.h"
#include "tests/refusals.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using refusals::counted_of_threads;
using refusals::kNever;
using refusals::refuse_of_threads;
using refusals::refused;

constexpr int64_t kAll = 1'000'000'000;

class RefusedMemoryOfThreads : public testing::Test {
 protected:
  ~RefusedMemoryOfThreads() override { refuse_of_threads(nullptr, kNever); }
};

// Stages in the order in which the watchdog enters them.
class Stages {
 public:
  Stages() { seen_.reserve(100); }
  void add(StallStage stage) {
    const std::lock_guard lock(mutex_);
    seen_.push_back(stage);
    changed_.notify_all();
  }
  void wait_for(StallStage stage) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return std::ranges::find(seen_, stage) != seen_.end(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StallStage> seen_;
};

TEST_F(RefusedMemoryOfThreads, a_stall_is_seen_without_any) {
  std::atomic<double> age = 0;
  Stages stages;
  const int64_t before = refused;
  {
    const Watchdog watchdog(
        {.stall_seconds = 1,
         .heartbeat =
             [&] {
               return Heartbeat{"the engine", age};
             },
         .describe = [] { return std::string("a text that is longer than a short one"); },
         .on_stage = [&](StallStage stage) { stages.add(stage); },
         .on_fine = [] {}});
    refuse_of_threads("watchdog", 0, kAll);
    age = 0.5;
    stages.wait_for(StallStage::kLate);
    age = 0;
    stages.wait_for(StallStage::kFine);
  }
  EXPECT_GT(refused, before);
}

// A reload is refused or done, as a whole; what is told around it may be left out.
TEST_F(RefusedMemoryOfThreads, a_reload_is_done_or_not) {
  const test::Folder folder;
  OptionSources sources;
  sources.file = folder / "configuration.json";
  std::ofstream(*sources.file)
      << R"({"log-level": "debug", "waiting-requests": 5, "sequences": 3})";
  const OptionValues values = *resolve_options({});
  size_t refused_count = 0;
  // Says how many allocations it took.
  const auto reload = [&](int64_t number) {
    std::string level = "info";
    level.reserve(10);
    size_t waiting = 0;
    Reloads reloads(sources, values);
    reloads.add("first", [&](const Options& options) -> Result<Reloads::Commit> {
      return [&level, given = options.log_level] { level = given; };
    });
    reloads.add("second", [&](const Options& options) -> Result<Reloads::Commit> {
      return [&waiting, options] { waiting = options.engine.waiting_requests; };
    });
    const auto tell = [] { static_cast<void>(std::string(100, 't')); };
    const double before = reloads.outcome().unix_seconds;
    reloads.start(tell, tell);
    refuse_of_threads("reload", number, 1);
    reloads.request();
    while (reloads.outcome().unix_seconds == before) std::this_thread::yield();
    reloads.stop();
    const int64_t count = counted_of_threads();
    refuse_of_threads(nullptr, kNever);
    const bool done = reloads.outcome().success;
    EXPECT_EQ(level, done ? "debug" : "info");
    EXPECT_EQ(waiting, done ? 5U : 0U);
    refused_count += done ? 0 : 1;
    return count;
  };
  const int64_t all = reload(kNever);
  EXPECT_EQ(refused_count, 0U);
  EXPECT_GT(all, 100);
  const int64_t stride = std::max<int64_t>(1, all / 300);
  for (int64_t first = 0, step = 0; first < all; first += stride, ++step) {
    const int64_t number = first + step % stride;
    SCOPED_TRACE("allocation " + std::to_string(number) + " of " + std::to_string(all));
    reload(number);
    if (HasFailure()) return;
  }
  EXPECT_GT(refused_count, 0U);
}

// The library's own comparison makes a value of the text where nothing may be thrown.
TEST(RefusedMemoryOfJson, a_comparison_with_a_text_takes_none) {
  const Json value = "a text that is longer than a short one";
  const Json number = 1;
  refusals::refuses_all = true;
  const bool same = value == "a text that is longer than a short one";
  const bool differs = value != "another text that is longer than a short one";
  const bool is_text = "1" == number;
  refusals::refuses_all = false;
  EXPECT_TRUE(same);
  EXPECT_TRUE(differs);
  EXPECT_FALSE(is_text);
}

// Owners that were read again come into effect without memory.
TEST(RefusedMemoryOfKeys, new_owners_take_none) {
  const KeyLimits::Time now = KeyLimits::Time() + std::chrono::hours(1);
  const KeyOwner known{.name = "alice", .digests = {}, .allowance = {.concurrent = 1}};
  const KeyOwner other{.name = "a name that is longer than a short one",
                       .digests = {},
                       .allowance = {.priority = 3}};
  KeyLimits limits;
  limits.set_owners({known}, now);
  ASSERT_TRUE(limits.enter("alice", 10, now).has_value());
  KeyLimits::NewOwners fresh({other, known});
  refusals::refuses_all = true;
  limits.set_owners(std::move(fresh), now);
  refusals::refuses_all = false;
  EXPECT_EQ(limits.priority(other.name), 3);
  EXPECT_FALSE(limits.enter("alice", 10, now).has_value());
  limits.end("alice", 0, 0, now);
  EXPECT_TRUE(limits.enter("alice", 10, now).has_value());
}

// One line of the log is lost with the memory for it; the log's own thread goes on.
TEST_F(RefusedMemoryOfThreads, the_log_goes_on) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  LogOutput output(ends[1], LogFormat::kText, 1000);
  const auto log = [&](const std::string& text) {
    output.log(spdlog::details::log_msg("test", spdlog::level::info, text));
  };
  const auto read_until = [&](std::string_view wanted) {
    std::string text;
    char bytes[4096];
    while (text.find(wanted) == std::string::npos) {
      const ssize_t count = read(ends[0], bytes, sizeof(bytes));
      if (count <= 0) break;
      text.append(bytes, static_cast<size_t>(count));
    }
    return text;
  };
  const int64_t before = refused;
  const std::string line(500, 'x');
  while (output.dropped() == 0) log(line);  // the pipe is full, and then the queue
  refuse_of_threads("log", 0, kAll);        // what it would say of the loss
  log("the last");
  read_until("the last");
  log("one more");
  read_until("one more");
  EXPECT_GT(refused, before);
  refuse_of_threads(nullptr, kNever);
  log("at last");
  std::string told = read_until("were dropped");
  if (told.find("at last") == std::string::npos) told += read_until("at last");
  EXPECT_NE(told.find("at last"), std::string::npos);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace lockstep
