// Groups of which a host fails, leaves, goes silent, or sends what it should not.
#include <gtest/gtest.h>

#include "tests/engine/hosts/test_hosts.h"

namespace lockstep {
namespace {

using namespace test;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{2000};  // where silence is tested
const Error kReason = {ErrorKind::kUnavailable, "there is no memory"};

// A group of three: hosts 0 and 1, and a connection that is host 2 as far as they know.
class GroupWithAPuppet : public testing::Test {
 protected:
  void form(milliseconds patience) {
    const std::string leader = own_address();
    std::vector<std::unique_ptr<FormingHost>> forming;
    for (size_t index = 0; index < 2; ++index) {
      HostOptions options = host_options(3, index, leader);
      options.patience = patience;
      forming.push_back(std::make_unique<FormingHost>(options));
    }
    puppet_ = connect_to(leader);
    say(*puppet_, hello_of(3, 2));
    for (const auto& host : forming) hosts_.push_back(std::move(*host->wait()));
    ASSERT_EQ(next_frame(*puppet_).kind, FrameKind::kWelcome);
  }

  void send(const std::vector<std::byte>& frame) { ASSERT_TRUE(puppet_->send(frame)); }
  // Both hosts fail for this reason.
  void expect_failure(const std::string& reason) {
    for (const auto& host : hosts_) EXPECT_EQ(failure_of(*host), reason);
  }
  // The puppet's frame makes the group fail so.
  void expect_lost(const std::vector<std::byte>& frame, const std::string& reason) {
    form(std::chrono::seconds(30));
    send(frame);
    expect_failure(hosts_[0]->name(2) + " is lost: " + reason);
  }

  std::vector<std::unique_ptr<HostGroup>> hosts_;
  std::unique_ptr<ControlStream> puppet_;
};

TEST_F(GroupWithAPuppet, a_silent_follower_is_lost) {
  form(kPatience);
  expect_failure(hosts_[0]->name(2) + " has been silent for 2 s");
  EXPECT_EQ(hosts_[1]->failure()->kind, ErrorKind::kMachineRefused);
  const auto command = hosts_[1]->next_command();
  ASSERT_FALSE(command);
  EXPECT_EQ(command.error().message, failure_of(*hosts_[0]));
}

TEST_F(GroupWithAPuppet, a_follower_that_reads_nothing_is_lost) {
  form(kPatience);
  std::thread follower([&] {
    while (hosts_[1]->next_command()) {
    }
  });
  const std::vector<std::byte> command(1U << 20U);
  Result<void> sent;
  while (sent) sent = hosts_[0]->send_command(command);
  EXPECT_TRUE(sent.error().message.contains("host 2")) << sent.error().message;
  follower.join();
}

TEST_F(GroupWithAPuppet, a_follower_whose_connection_ends_is_lost) {
  form(std::chrono::seconds(30));
  puppet_->shut_down();
  for (const auto& host : hosts_) {
    EXPECT_TRUE(failure_of(*host).starts_with(hosts_[0]->name(2) + " is lost: "))
        << failure_of(*host);
  }
}

TEST_F(GroupWithAPuppet, a_follower_that_leaves_says_so) {
  form(std::chrono::seconds(30));
  std::vector<std::byte> frame;
  append_frame(FrameKind::kGoodbye, {}, frame);
  send(frame);
  expect_failure(hosts_[0]->name(2) + " has left");
}

TEST_F(GroupWithAPuppet, what_is_no_frame_fails_the_group) {
  expect_lost(std::vector<std::byte>(8, std::byte{'x'}), "what came is no frame of this protocol");
}

TEST_F(GroupWithAPuppet, a_frame_that_is_too_long_fails_the_group) {
  std::vector<std::byte> frame;
  append_frame(FrameKind::kPing, {}, frame);
  frame[0] = std::byte{1};
  expect_lost(frame, "a frame of kind 6 has 1 bytes, more than 0");
}

TEST_F(GroupWithAPuppet, a_frame_of_no_kind_fails_the_group) {
  std::vector<std::byte> frame;
  append_frame(FrameKind::kPing, {}, frame);
  frame[4] = std::byte{77};
  expect_lost(frame, "a frame has kind 77, of which there is none");
}

TEST_F(GroupWithAPuppet, a_command_of_a_follower_fails_the_group) {
  std::vector<std::byte> frame;
  append_frame(FrameKind::kCommand, {}, frame);
  expect_lost(frame, "it sent a frame of kind 8 out of order");
}

TEST_F(GroupWithAPuppet, a_document_of_another_host_fails_the_group) {
  std::vector<std::byte> frame;
  append_frame(HostDocument{1, "{}"}, frame);
  expect_lost(frame, "it sent a document of host 1 out of order");
}

TEST_F(GroupWithAPuppet, a_second_document_fails_the_group) {
  std::vector<std::byte> frames;
  append_frame(HostDocument{2, "{}"}, frames);
  append_frame(HostDocument{2, "{}"}, frames);
  expect_lost(frames, "it sent a document of host 2 out of order");
}

TEST_F(GroupWithAPuppet, a_document_that_is_no_json_fails_the_group) {
  form(std::chrono::seconds(30));
  std::vector<std::byte> frame;
  append_frame(HostDocument{2, "{"}, frame);
  send(frame);
  on_all(hosts_, [&](HostGroup& host) {
    const auto gathered = host.gather(Json());
    ASSERT_FALSE(gathered);
    EXPECT_TRUE(
        gathered.error().message.starts_with(hosts_[0]->name(2) + " sent what is no document: "))
        << gathered.error().message;
  });
}

// A follower whose leader is a connection that says nothing after its welcome.
TEST(GroupFailure, a_silent_leader_is_lost) {
  const std::string leader = own_address();
  const auto listener = HostListener::open(leader, HostStreamOptions());
  ASSERT_TRUE(listener) << listener.error().message;
  HostOptions options = host_options(2, 1, leader);
  options.patience = kPatience;
  FormingHost forming(options);
  std::unique_ptr<HostStream> accepted;
  while (!accepted) accepted = std::move(*(*listener)->accept(std::chrono::seconds(1)));
  ControlStream puppet(std::move(accepted));
  ASSERT_EQ(next_frame(puppet).kind, FrameKind::kHello);
  std::vector<std::byte> frame;
  append_frame(Welcome{random_nonce(), {leader, "127.0.0.1:1"}}, frame);
  ASSERT_TRUE(puppet.send(frame));
  const Formed formed = forming.wait();
  ASSERT_TRUE(formed) << formed.error().message;
  const auto command = (*formed)->next_command();
  ASSERT_FALSE(command);
  EXPECT_EQ(command.error().message, (*formed)->name(0) + " has been silent for 2 s");
}

class GroupFailures : public testing::TestWithParam<std::tuple<size_t, bool>> {
 protected:
  size_t failing() const { return std::get<0>(GetParam()); }
  std::vector<std::unique_ptr<HostGroup>> form() const {
    return form_group(3, std::get<1>(GetParam()) ? std::optional(some_secret()) : std::nullopt);
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, GroupFailures,
                         testing::Combine(testing::Values(0, 1, 2), testing::Bool()));

TEST_P(GroupFailures, the_others_hear_a_hosts_own_words) {
  auto hosts = form();
  hosts[failing()]->fail(kReason);
  hosts[failing()]->fail({ErrorKind::kInvalidInput, "later"});
  for (const auto& host : hosts) {
    const std::string told = host->index() == failing()
                                 ? kReason.message
                                 : fmt::format("{}: {}", host->name(failing()), kReason.message);
    EXPECT_EQ(failure_of(*host), told);
    EXPECT_EQ(host->failure()->kind, kReason.kind);
  }
}

TEST_P(GroupFailures, the_others_hear_who_has_left) {
  auto hosts = form();
  const std::string name = hosts[0]->name(failing());
  hosts[failing()].reset();
  for (const auto& host : hosts) {
    if (!host) continue;
    EXPECT_EQ(failure_of(*host), name + " has left");
  }
}

// Each host but the failing one waits for documents, for a command, or on a link.
TEST_P(GroupFailures, calls_in_progress_fail) {
  for (const std::string call : {"gather", "command", "link"}) {
    auto hosts = form();
    on_all(hosts, [&](HostGroup& host) {
      ASSERT_TRUE(host.open_links(100));
      if (host.index() == failing()) {
        std::this_thread::sleep_for(milliseconds(50));
        return host.fail(kReason);
      }
      if (call == "gather" || (call == "command" && host.leads())) {
        const auto gathered = host.gather(Json());
        ASSERT_FALSE(gathered);
        EXPECT_TRUE(gathered.error().message.contains(kReason.message));
      } else if (call == "command") {
        const auto command = host.next_command();
        ASSERT_FALSE(command);
        EXPECT_TRUE(command.error().message.contains(kReason.message));
      } else {
        // With a host that is alive, and sends nothing.
        const size_t other = 3 - failing() - host.index();
        std::array<std::byte, 10> received;
        ASSERT_FALSE(host.link(other).exchange({}, received));
        EXPECT_TRUE(failure_of(host).contains(kReason.message));
      }
    });
    for (const auto& host : hosts) {
      EXPECT_FALSE(host->gather(Json()));
      EXPECT_FALSE(host->leads() ? host->send_command({}).has_value()
                                 : host->next_command().has_value());
    }
  }
}

// A group is formed again at the address of one that failed.
TEST(GroupFailure, another_group_takes_the_place_of_one_that_failed) {
  const std::string leader = own_address();
  for (int round = 0; round < 3; ++round) {
    FormingHost first(host_options(2, 0, leader));
    FormingHost second(host_options(2, 1, leader));
    std::vector<std::unique_ptr<HostGroup>> hosts;
    hosts.push_back(std::move(*first.wait()));
    hosts.push_back(std::move(*second.wait()));
    on_all(hosts, [](HostGroup& host) { ASSERT_TRUE(host.open_links(100)); });
    hosts[1]->fail(kReason);
    EXPECT_TRUE(failure_of(*hosts[0]).contains(kReason.message));
  }
}

}  // namespace
}  // namespace lockstep
