#include "server/daemon/reloads.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <sstream>

#include "engine/base/log.h"

namespace lockstep {
namespace {

// A configuration file of this process's own, and the reloads that read it.
class ReloadsTest : public testing::Test {
 protected:
  ReloadsTest() { write("{}"); }
  ~ReloadsTest() override { std::filesystem::remove(path_); }

  void write(const std::string& text) const { std::ofstream(path_) << text; }

  void start() {
    sources_.file = path_;
    reloads_.emplace(sources_, *resolve_options(sources_));
    reloads_->add("first", [this](const Options& options) -> Result<Reloads::Commit> {
      return [this, options] {
        level_ = options.log_level;
        options_ = options;
      };
    });
    reloads_->add("second", [this](const Options&) -> Result<Reloads::Commit> {
      if (second_fails_) return invalid_input("no such file");
      return [this] { ++second_count_; };
    });
    reloads_->add("third", [this](const Options&) -> Result<Reloads::Commit> {
      return [this] {
        if (third_throws_) throw std::bad_alloc();
      };
    });
    reloads_->add("fourth", [this](const Options&) -> Result<Reloads::Commit> {
      return [this] { ++fourth_count_; };
    });
    reloads_->start({}, [this] {
      const std::lock_guard lock(mutex_);
      ++ended_;
      changed_.notify_all();
    });
  }

  void reload() {
    std::unique_lock lock(mutex_);
    const int wanted = ended_ + 1;
    reloads_->request();
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::minutes(5), [&] { return ended_ >= wanted; }));
  }

  std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                ("lockstep-reloads-" + std::to_string(getpid()) + ".json");
  OptionSources sources_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int ended_ = 0;
  std::string level_ = "unchanged";
  Options options_;  // as the first part has them
  bool second_fails_ = false;
  int second_count_ = 0;
  bool third_throws_ = false;
  int fourth_count_ = 0;
  std::optional<Reloads> reloads_;  // last: its thread uses the rest
};

TEST_F(ReloadsTest, new_values_take_effect) {
  start();
  write(R"({"log-level": "debug"})");
  reload();
  EXPECT_EQ(level_, "debug");
  EXPECT_EQ(second_count_, 1);
  EXPECT_TRUE(reloads_->outcome().success);
}

TEST_F(ReloadsTest, what_takes_a_restart_stays_as_it_is_for_all_parts) {
  start();
  write(R"({"sequences": 3, "waiting-requests": 5, "max-body-bytes": 2000, "host": "::"})");
  for (int times = 0; times < 2; ++times) {
    reload();
    EXPECT_EQ(options_.engine.waiting_requests, 5U);
    EXPECT_EQ(options_.http.limits.body_bytes, 2000U);
    EXPECT_EQ(options_.engine.sequence_count, EngineOptions().sequence_count);
    EXPECT_EQ(options_.http.host, HttpOptions().host);
  }
}

TEST_F(ReloadsTest, the_command_line_still_beats_the_file) {
  sources_.command_line["log-level"] = "error";
  start();
  write(R"({"log-level": "debug"})");
  reload();
  EXPECT_EQ(level_, "error");
}

TEST_F(ReloadsTest, an_invalid_configuration_changes_nothing_and_the_next_valid_one_does) {
  start();
  const double started = reloads_->outcome().unix_seconds;
  for (const char* text : {"{", R"({"log-level": "loud"})", R"({"nonsense": 1})"}) {
    write(text);
    reload();
    EXPECT_EQ(level_, "unchanged") << text;
    EXPECT_EQ(second_count_, 0);
    EXPECT_FALSE(reloads_->outcome().success);
    EXPECT_GE(reloads_->outcome().unix_seconds, started);
  }
  write(R"({"log-level": "warn"})");
  reload();
  EXPECT_EQ(level_, "warn");
  EXPECT_TRUE(reloads_->outcome().success);
}

TEST_F(ReloadsTest, one_part_that_fails_keeps_all_parts_as_they_were) {
  start();
  write(R"({"log-level": "debug"})");
  second_fails_ = true;
  reload();
  EXPECT_EQ(level_, "unchanged");
  EXPECT_FALSE(reloads_->outcome().success);
  second_fails_ = false;
  reload();
  EXPECT_EQ(level_, "debug");
  EXPECT_TRUE(reloads_->outcome().success);
}

TEST_F(ReloadsTest, a_part_that_throws_is_named_and_all_others_take_effect) {
  start();
  write(R"({"log-level": "debug"})");
  third_throws_ = true;
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  reload();
  spdlog::set_default_logger(before);
  EXPECT_EQ(level_, "debug");
  EXPECT_EQ(second_count_, 1);
  EXPECT_EQ(fourth_count_, 1);
  EXPECT_FALSE(reloads_->outcome().success);
  EXPECT_NE(log.str().find("third: what was read again is not in effect"), std::string::npos)
      << log.str();
  EXPECT_EQ(log.str().find("stays as it was"), std::string::npos) << log.str();
  third_throws_ = false;
  reload();
  EXPECT_TRUE(reloads_->outcome().success);
}

}  // namespace
}  // namespace lockstep
