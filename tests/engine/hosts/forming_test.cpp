#include "engine/hosts/forming.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "engine/base/mutex.h"
#include "engine/collectives/host_stream.h"
#include "tests/engine/hosts/test_hosts.h"

namespace lockstep {
namespace {

using namespace test;
using std::chrono::milliseconds;

// Whatever has happened by then, the outcome is the same.
void let_pass(int some = 60) {
  std::this_thread::sleep_for(milliseconds(some));
}

std::string group_of(FormingHost& host, size_t count, size_t index) {
  const Formed formed = host.wait();
  if (!formed) return formed.error().message;
  EXPECT_EQ((*formed)->count(), count);
  EXPECT_EQ((*formed)->index(), index);
  return {};
}

TEST(Forming, hosts_may_come_in_any_order) {
  for (const bool has_secret : {false, true}) {
    std::array<size_t, 3> order = {0, 1, 2};
    do {
      const std::string leader = own_address();
      const auto secret = has_secret ? std::optional(some_secret()) : std::nullopt;
      std::array<std::unique_ptr<FormingHost>, 3> hosts;
      for (const size_t index : order) {
        hosts[index] = std::make_unique<FormingHost>(host_options(3, index, leader, secret));
        let_pass(30);
      }
      std::array<Formed, 3> formed;
      for (size_t index = 0; index < 3; ++index) formed[index] = hosts[index]->wait();
      for (size_t index = 0; index < 3; ++index) {
        ASSERT_TRUE(formed[index]) << formed[index].error().message;
        EXPECT_EQ((*formed[index])->name(0), "host 0 (" + leader + ")");
        for (size_t host = 0; host < 3; ++host) {
          EXPECT_EQ((*formed[index])->name(host), (*formed[0])->name(host));
        }
      }
    } while (std::ranges::next_permutation(order).found);
  }
}

TEST(Forming, a_group_of_one_waits_for_nobody) {
  FormingHost host(host_options(1, 0, "127.0.0.1:1"));
  EXPECT_EQ(group_of(host, 1, 0), "");
}

TEST(Forming, all_addresses_may_be_given) {
  const std::vector<std::string> addresses = {own_address(), own_address(), own_address()};
  std::vector<std::unique_ptr<FormingHost>> hosts;
  for (size_t index = 0; index < 3; ++index) {
    HostOptions options = host_options(3, index, addresses[0]);
    options.addresses = addresses;
    hosts.push_back(std::make_unique<FormingHost>(options));
  }
  std::vector<std::unique_ptr<HostGroup>> groups;
  for (const auto& host : hosts) groups.push_back(std::move(*host->wait()));
  for (size_t index = 0; index < 3; ++index) {
    EXPECT_EQ(groups[2]->name(index), fmt::format("host {} ({})", index, addresses[index]));
  }
  on_all(groups, [](HostGroup& host) { ASSERT_TRUE(host.open_links(100)); });
}

TEST(Forming, a_restarted_follower_takes_its_place_again) {
  const std::string leader = own_address();
  FormingHost first(host_options(3, 0, leader));
  {
    FormingHost gone(host_options(3, 1, leader));
    let_pass();
  }
  FormingHost again(host_options(3, 1, leader));
  let_pass();
  FormingHost third(host_options(3, 2, leader));
  const Formed groups[] = {first.wait(), again.wait(), third.wait()};
  for (const Formed& group : groups) ASSERT_TRUE(group) << group.error().message;
}

// A machine that lost its power says nothing to its connections.
TEST(Forming, a_restarted_follower_takes_the_place_of_its_silent_connection) {
  const std::string leader = own_address();
  HostOptions options = host_options(3, 0, leader);
  options.patience = milliseconds(1000);
  FormingHost first(options);
  const auto silent = connect_to(leader);
  say(*silent, hello_of(3, 1));
  options.index = 1;
  FormingHost again(options);
  while (silent->receive_within(std::chrono::seconds(1))) {
  }
  options.index = 2;
  FormingHost third(options);
  const Formed groups[] = {first.wait(), again.wait(), third.wait()};
  for (const Formed& group : groups) ASSERT_TRUE(group) << group.error().message;
}

TEST(Forming, followers_find_a_leader_that_restarts) {
  const std::string leader = own_address();
  FormingHost second(host_options(3, 1, leader));
  {
    FormingHost gone(host_options(3, 0, leader));
    let_pass(150);
  }
  FormingHost third(host_options(3, 2, leader));
  FormingHost first(host_options(3, 0, leader));
  const Formed groups[] = {first.wait(), second.wait(), third.wait()};
  for (const Formed& group : groups) ASSERT_TRUE(group) << group.error().message;
}

TEST(Forming, of_two_hosts_of_one_index_the_second_is_refused) {
  const std::string leader = own_address();
  FormingHost first(host_options(3, 0, leader));
  const auto place = connect_to(leader);
  say(*place, hello_of(3, 1));
  ASSERT_TRUE(*place->receive_within(std::chrono::seconds(60)));
  std::atomic<bool> is_over = false;
  std::thread living([&] {
    std::vector<std::byte> ping;
    append_frame(FrameKind::kPing, {}, ping);
    while (!is_over && place->send(ping)) let_pass(20);
  });
  FormingHost second(host_options(3, 1, leader));
  const Formed refused = second.wait();
  is_over = true;
  living.join();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
  EXPECT_TRUE(refused.error().message.contains("there are two hosts of index 1"))
      << refused.error().message;
}

// Starts a group of two; `spoil` makes a second host that does not fit, whose error is returned.
// The group is completed by another one after it.
Error refusal_of(const std::function<void(HostOptions&)>& spoil) {
  const std::string leader = own_address();
  FormingHost first(host_options(2, 0, leader, some_secret()));
  HostOptions spoilt = host_options(2, 1, leader, some_secret());
  spoil(spoilt);
  Error error;
  {
    FormingHost stranger(spoilt);
    const Formed formed = stranger.wait();
    EXPECT_FALSE(formed);
    if (!formed) error = formed.error();
  }
  FormingHost second(host_options(2, 1, leader, some_secret()));
  const Formed groups[] = {first.wait(), second.wait()};
  for (const Formed& group : groups) EXPECT_TRUE(group) << group.error().message;
  return error;
}

TEST(Forming, a_host_of_another_count_is_refused) {
  const Error error = refusal_of([](HostOptions& options) { options.count = 3; });
  EXPECT_EQ(error.kind, ErrorKind::kInvalidInput);
  EXPECT_TRUE(error.message.contains("host 0 expects 2 hosts, this one was given 3"))
      << error.message;
}

TEST(Forming, a_host_of_another_version_is_refused) {
  const Error error = refusal_of([](HostOptions& options) { options.version = "older"; });
  EXPECT_EQ(error.kind, ErrorKind::kInvalidInput);
  EXPECT_TRUE(error.message.contains("host 0 runs version test, this one older")) << error.message;
}

// It knows the secret: it was sent to the wrong leader.
TEST(Forming, a_host_of_another_group_is_refused_and_both_are_named) {
  const Error error = refusal_of([](HostOptions& options) { options.group = "a:1,b:1"; });
  EXPECT_EQ(error.kind, ErrorKind::kInvalidInput);
  EXPECT_TRUE(error.message.contains("host 0 is of the group 'test', this one of 'a:1,b:1'"))
      << error.message;
  EXPECT_TRUE(error.message.contains("--hosts-group")) << error.message;
}

TEST(Forming, a_host_with_another_secret_is_refused) {
  const Error error = refusal_of([](HostOptions& options) { options.secret->fill({}); });
  EXPECT_EQ(error.kind, ErrorKind::kMachineRefused);
  EXPECT_TRUE(error.message.contains("secret")) << error.message;
}

TEST(Forming, strangers_do_not_keep_a_group_from_forming) {
  const std::string leader = own_address();
  FormingHost first(host_options(2, 0, leader));
  std::vector<std::unique_ptr<ControlStream>> silent;
  for (int count = 0; count < 5; ++count) silent.push_back(connect_to(leader));
  const auto half = connect_to(leader);
  std::vector<std::byte> frame;
  append_frame(hello_of(2, 1), frame);
  ASSERT_TRUE(half->send(std::span(frame).first(20)));
  const auto garbage = connect_to(leader);
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_TRUE(garbage->send(std::as_bytes(std::span(request))));
  const auto long_frame = connect_to(leader);
  frame.clear();
  append_frame(HostDocument{1, std::string(1U << 20U, 'x')}, frame);
  ASSERT_TRUE(long_frame->send(std::span(frame).first(100)));
  EXPECT_FALSE(long_frame->receive_within(std::chrono::seconds(60)));  // it is closed at once
  const auto link = connect_to(leader);
  frame.clear();
  append_frame(LinkHello(), frame);
  ASSERT_TRUE(link->send(frame));
  EXPECT_EQ(next_frame(*link).kind, FrameKind::kRefusal);

  const auto newer = connect_to(leader);
  Hello hello = hello_of(2, 1);
  hello.protocol = kHostProtocol + 1;
  say(*newer, hello);
  const Frame answer = next_frame(*newer);
  EXPECT_EQ(answer.kind, FrameKind::kRefusal);
  EXPECT_EQ(
      decode_text(answer.payload),
      fmt::format("version {} of the hosts' protocol came, and {} is known: all hosts run the "
                  "same version of this program",
                  hello.protocol, kHostProtocol));

  FormingHost second(host_options(2, 1, leader));
  const Formed groups[] = {first.wait(), second.wait()};
  for (const Formed& group : groups) ASSERT_TRUE(group) << group.error().message;
}

// Keeps what a host was told of its waiting.
class Told {
 public:
  std::function<void(const std::string&)> listener() {
    return [this](const std::string& whom) {
      const MutexLock lock(mutex_);
      told_.push_back(whom);
      changed_.notify_all();
    };
  }
  void wait_for(const std::string& whom) {
    const MutexLock lock(mutex_);
    while (std::ranges::count(told_, whom) == 0) changed_.wait(mutex_);
  }
  std::string last() const {
    const MutexLock lock(mutex_);
    return told_.empty() ? "nothing" : told_.back();
  }

 private:
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::string> told_ LOCKSTEP_GUARDED_BY(mutex_);
};

TEST(Forming, leader_and_followers_say_who_is_missing_until_nobody_is) {
  const std::string leader = own_address();
  std::array<Told, 4> told;
  std::array<std::unique_ptr<FormingHost>, 4> hosts;
  const auto start = [&](size_t index) {
    HostOptions options = host_options(4, index, leader);
    options.on_waiting = told[index].listener();
    hosts[index] = std::make_unique<FormingHost>(options);
  };
  for (const size_t index : {0U, 2U}) start(index);
  const std::string is_there = "; host 0 (" + leader + ") is there";
  told[0].wait_for("host 1, host 3 of 4 hosts");
  told[2].wait_for("host 1, host 3 of 4 hosts" + is_there);
  start(1);
  told[0].wait_for("host 3 of 4 hosts");
  for (const size_t index : {1U, 2U}) told[index].wait_for("host 3 of 4 hosts" + is_there);
  start(3);
  for (const auto& host : hosts) {
    const Formed formed = host->wait();
    ASSERT_TRUE(formed) << formed.error().message;
  }
  for (const size_t index : {0U, 1U, 2U}) EXPECT_EQ(told[index].last(), "");
}

TEST(Forming, a_host_that_is_stopped_tells_that_it_waits_no_more) {
  const std::string nobody = own_address();
  Told told;
  HostOptions options = host_options(2, 1, nobody);
  options.on_waiting = told.listener();
  FormingHost host(options);
  told.wait_for("host 0 (" + nobody + ")");
  host.stop();
  EXPECT_FALSE(host.wait());
  EXPECT_EQ(told.last(), "");
}

TEST(Forming, a_host_that_is_stopped_waits_no_longer) {
  const std::string leader = own_address();
  const std::string nobody = own_address();
  FormingHost first(host_options(3, 0, leader));
  FormingHost joined(host_options(3, 1, leader));
  FormingHost alone(host_options(3, 1, nobody));
  let_pass(150);
  for (FormingHost* const host : {&joined, &alone, &first}) {
    host->stop();
    const Formed formed = host->wait();
    ASSERT_FALSE(formed);
    EXPECT_EQ(formed.error().kind, ErrorKind::kUnavailable);
  }
}

TEST(Forming, what_does_not_fit_is_refused_before_anything_is_done) {
  const auto refusal = [](const HostOptions& options) {
    FormingHost host(options);
    const Formed formed = host.wait();
    EXPECT_FALSE(formed);
    return formed ? Error() : formed.error();
  };
  for (const auto& [count, index] : {std::pair(0U, 0U), std::pair(300U, 0U), std::pair(2U, 2U)}) {
    EXPECT_EQ(refusal(host_options(count, index, "127.0.0.1:7070")).kind, ErrorKind::kInvalidInput);
  }
  HostOptions options = host_options(3, 0, own_address());
  options.addresses.resize(2, own_address());
  EXPECT_EQ(refusal(options).message,
            "2 addresses were given for 3 hosts: give the leader's or all");
  options = host_options(2, 0, own_address());
  options.group = std::string(257, 'x');
  EXPECT_EQ(refusal(options).message, "a group's name has 257 bytes, more than 256");
  options = host_options(2, 1, "no address");
  EXPECT_EQ(refusal(options).kind, ErrorKind::kInvalidInput);

  const std::string taken = own_address();
  const auto listener = HostListener::open(taken, HostStreamOptions());
  ASSERT_TRUE(listener) << listener.error().message;
  const Error error = refusal(host_options(2, 0, taken));
  EXPECT_EQ(error.kind, ErrorKind::kMachineRefused);
  EXPECT_TRUE(error.message.contains(taken)) << error.message;
}

}  // namespace
}  // namespace lockstep
