#include "engine/hosts/host_group.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "engine/collectives/host_stream.h"
#include "engine/hosts/control_stream.h"
#include "tests/engine/hosts/test_hosts.h"

namespace lockstep {
namespace {

using namespace test;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class HostGroups : public testing::TestWithParam<std::tuple<size_t, bool>> {
 protected:
  size_t count() const { return std::get<0>(GetParam()); }
  std::optional<SecretKey> secret() const {
    return std::get<1>(GetParam()) ? std::optional(some_secret()) : std::nullopt;
  }
};

INSTANTIATE_TEST_SUITE_P(Counts, HostGroups,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Bool()));

TEST_P(HostGroups, every_host_gathers_all_documents_of_any_size) {
  auto hosts = form_group(count(), secret());
  constexpr size_t kLongest = (1U << 20U) - 64;  // the rest is the document's own
  const auto document = [](size_t round, size_t host) {
    const size_t sizes[] = {0, 1, 4096, 100'000, kLongest};
    return Json{{"host", host}, {"round", round}, {"text", std::string(sizes[round], 'x')}};
  };
  on_all(hosts, [&](HostGroup& host) {
    for (size_t round = 0; round < 5; ++round) {
      const auto gathered = host.gather(document(round, host.index()));
      ASSERT_TRUE(gathered) << gathered.error().message;
      ASSERT_EQ(gathered->size(), count());
      for (size_t index = 0; index < count(); ++index) {
        ASSERT_EQ((*gathered)[index], document(round, index));
      }
    }
  });
}

TEST_P(HostGroups, every_pair_has_a_link) {
  auto hosts = form_group(count(), secret());
  on_all(hosts, [&](HostGroup& host) {
    const auto opened = host.open_links(1 << 16);
    ASSERT_TRUE(opened) << opened.error().message;
    for (size_t other = 0; other < count(); ++other) {
      if (other == host.index()) continue;
      const std::string own = fmt::format("from {} to {}", host.index(), other);
      std::string theirs(own.size(), ' ');
      ASSERT_TRUE(
          host.link(other).exchange(bytes_of(own), std::as_writable_bytes(std::span(theirs))));
      ASSERT_EQ(theirs, fmt::format("from {} to {}", other, host.index()));
    }
  });
}

TEST_P(HostGroups, commands_come_whole_and_in_order) {
  auto hosts = form_group(count(), secret());
  const size_t commands = 500;
  const auto command = [](size_t number) {
    // One in so many is longer than what sockets buffer.
    return fmt::format("{} {}", number, std::string(number % 100 == 99 ? 8U << 20U : number, 'c'));
  };
  on_all(hosts, [&](HostGroup& host) {
    for (size_t number = 0; number < commands; ++number) {
      if (host.leads()) {
        ASSERT_TRUE(host.send_command(bytes_of(command(number))));
      } else {
        const auto received = host.next_command();
        ASSERT_TRUE(received) << received.error().message;
        ASSERT_TRUE(text_of(*received) == command(number)) << number;
      }
    }
  });
}

TEST_P(HostGroups, commands_come_after_links_and_documents) {
  auto hosts = form_group(count(), secret());
  on_all(hosts, [&](HostGroup& host) {
    ASSERT_TRUE(host.gather({{"index", host.index()}}));
    ASSERT_TRUE(host.open_links(100));
    if (host.leads()) {
      ASSERT_TRUE(host.send_command(bytes_of("last")));
    } else {
      ASSERT_EQ(text_of(*host.next_command()), "last");
    }
  });
}

TEST(HostGroup, the_last_command_comes_before_the_leader_has_left) {
  auto hosts = form_group(3);
  ASSERT_TRUE(hosts[0]->send_command(bytes_of("the last")));
  hosts[0].reset();
  for (const size_t index : {1U, 2U}) {
    ASSERT_EQ(text_of(*hosts[index]->next_command()), "the last");
    const auto none = hosts[index]->next_command();
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().message, hosts[index]->name(0) + " has left");
  }
}

TEST(HostGroup, a_command_that_is_too_long_is_not_sent) {
  auto hosts = form_group(2);
  const std::vector<std::byte> command((16U << 20U) + 1);
  const auto sent = hosts[0]->send_command(command);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::kInvalidInput);
  EXPECT_FALSE(hosts[0]->failure());
}

// Page tables of many long sequences: hosts say before how much that may be.
TEST(HostGroup, commands_are_as_long_as_the_hosts_have_said) {
  auto hosts = form_group(2);
  const std::string command(33U << 20U, 'c');
  on_all(hosts, [&](HostGroup& host) {
    EXPECT_FALSE(host.bound_commands((size_t{1} << 30U) + 1));
    ASSERT_TRUE(host.bound_commands(command.size()));
    ASSERT_TRUE(host.gather({{"ready", true}}));
    if (host.leads()) {
      ASSERT_TRUE(host.send_command(bytes_of(command)));
      EXPECT_FALSE(host.send_command(bytes_of(command + "c")));
    } else {
      const auto received = host.next_command();
      ASSERT_TRUE(received) << received.error().message;
      EXPECT_TRUE(text_of(*received) == command);
    }
  });
  EXPECT_FALSE(hosts[0]->failure());
}

TEST(HostGroup, a_document_that_is_too_long_fails_the_group) {
  auto hosts = form_group(2);
  on_all(hosts, [](HostGroup& host) {
    const size_t bytes = host.leads() ? 10 : 1U << 20U;
    const auto gathered = host.gather(Json(std::string(bytes, 'x')));
    ASSERT_FALSE(gathered);
    EXPECT_TRUE(gathered.error().message.contains("a document of 1048578 bytes"))
        << gathered.error().message;
  });
}

TEST(HostGroup, hosts_must_be_asked_for_the_same_transport) {
  const std::string leader = own_address();
  std::vector<std::unique_ptr<FormingHost>> forming;
  for (size_t index = 0; index < 2; ++index) {
    HostOptions options = host_options(2, index, leader);
    options.transport = index == 0 ? "tcp" : "other";
    forming.push_back(std::make_unique<FormingHost>(options));
  }
  std::vector<std::unique_ptr<HostGroup>> hosts;
  for (const auto& host : forming) hosts.push_back(std::move(*host->wait()));
  on_all(hosts, [](HostGroup& host) {
    const auto opened = host.open_links(100);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().kind, ErrorKind::kInvalidInput);
    EXPECT_TRUE(opened.error().message.contains("\"tcp\"")) << opened.error().message;
    EXPECT_TRUE(opened.error().message.contains("\"other\"")) << opened.error().message;
  });
}

// Connections of strangers, and of other groups' hosts, are refused while links are opened.
TEST(HostGroup, links_of_other_groups_are_refused) {
  const std::string leader = own_address();
  FormingHost first(host_options(2, 0, leader));
  FormingHost second(host_options(2, 1, leader));
  std::vector<std::unique_ptr<HostGroup>> hosts;
  hosts.push_back(std::move(*first.wait()));
  hosts.push_back(std::move(*second.wait()));
  std::thread opening([&] { ASSERT_TRUE(hosts[0]->open_links(100)); });

  auto connected = connect_host(leader, HostStreamOptions());
  ASSERT_TRUE(connected) << connected.error().message;
  ControlStream stranger(std::move(*connected));
  LinkHello hello;
  hello.group = random_nonce();
  hello.from = 1;
  std::vector<std::byte> frame;
  append_frame(hello, frame);
  ASSERT_TRUE(stranger.send(frame));
  // The leader looks at it once it accepts links: with the other host's.
  std::thread other([&] { ASSERT_TRUE(hosts[1]->open_links(100)); });
  const auto answer = stranger.receive_within(std::chrono::seconds(60));
  opening.join();
  other.join();
  ASSERT_TRUE(answer) << answer.error().message;
  ASSERT_TRUE(*answer);
  EXPECT_EQ((*answer)->kind, FrameKind::kRefusal);
  EXPECT_EQ(decode_text((*answer)->payload), "this link is of another group");
  EXPECT_FALSE(hosts[0]->failure());
}

}  // namespace
}  // namespace lockstep
