// Every transport between hosts that this machine has, both ends in this process.
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>

#include "engine/collectives/host_transports.h"
#include "engine/collectives/message_pieces.h"
#include "tests/engine/collectives/connected_hosts.h"
#include "tests/engine/collectives/tested_transports.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr size_t kBytesMost = size_t{64} << 20U;

struct ConnectedLinks {
  std::unique_ptr<HostLink> accepted;
  std::unique_ptr<HostLink> connected;
};

class HostLinks : public ::testing::TestWithParam<HostTransport> {
 protected:
  void SetUp() override {
    const std::string obstacle = GetParam().obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
  }

  // `beside`: another link of the host that accepts.
  ConnectedLinks connect(std::chrono::milliseconds patience = 60s,
                         HostLink* beside = nullptr) const {
    HostStreamOptions options = host_options(false);
    options.patience = patience;
    ConnectedHosts hosts = connect_hosts(options, options);
    const auto& make = GetParam().make;
    auto [one, two] = both_at_once(
        [&] { return std::optional(make(std::move(hosts.accepted), kBytesMost, beside)); },
        [&] { return make(std::move(hosts.connected), kBytesMost, nullptr); });
    CHECK(one->has_value() && two.has_value(), "hosts are not linked");
    return {.accepted = std::move(**one), .connected = std::move(*two)};
  }
};

INSTANTIATE_TEST_SUITE_P(All, HostLinks, ::testing::ValuesIn(tested_transports()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(HostLinks, exchanges_of_any_sizes_arrive_in_their_order) {
  const ConnectedLinks links = connect();
  EXPECT_EQ(links.accepted->transport(), GetParam().name);
  constexpr uint64_t kSeed = 28;
  std::mt19937_64 random(kSeed);
  std::vector<std::vector<std::byte>> to;
  std::vector<std::vector<std::byte>> back;
  for (int round = 0; round < 100; ++round) {
    to.push_back(random_bytes(random, random() % (size_t{1} << (random() % 22))));
    back.push_back(random_bytes(random, random() % (size_t{1} << (random() % 22))));
  }
  // Neither side waits for the other but by the exchanges themselves.
  const auto run = [](HostLink& link, const auto& out, const auto& expected) {
    for (size_t round = 0; round < out.size(); ++round) {
      std::vector<std::byte> in(expected[round].size());
      if (!link.exchange(out[round], in) || in != expected[round]) return round;
    }
    return out.size();
  };
  const auto [one, two] = both_at_once([&] { return run(*links.accepted, back, to); },
                                       [&] { return run(*links.connected, to, back); });
  EXPECT_EQ(one, to.size()) << "seed " << kSeed;
  EXPECT_EQ(two, to.size()) << "seed " << kSeed;
}

TEST_P(HostLinks, sixty_four_mebibytes_both_ways_do_not_block_one_another) {
  const ConnectedLinks links = connect();
  std::mt19937_64 random(1);
  auto bytes = random_bytes(random, size_t{1} << 20U);
  bytes.resize(kBytesMost);
  std::vector<std::byte> one_got(bytes.size());
  std::vector<std::byte> two_got(bytes.size());
  const auto [one, two] = both_at_once([&] { return links.accepted->exchange(bytes, one_got); },
                                       [&] { return links.connected->exchange(bytes, two_got); });
  ASSERT_TRUE(one && two);
  EXPECT_TRUE(one_got == bytes && two_got == bytes);
}

// Moves `out` and `expected` piece by piece, as they get ready and as there is space for them.
bool move_pieces(HostLink& link, std::span<const std::byte> out,
                 std::span<const std::byte> expected, std::mt19937_64& random) {
  std::vector<std::byte> in(expected.size());
  size_t ready = 0;
  size_t sent = 0;
  size_t received = 0;
  while (sent < out.size() || received < in.size()) {
    ready = std::min(out.size(), ready + random() % 100'000);
    const auto gone = link.pieces().send_some(out.first(ready).subspan(sent));
    const size_t space = std::min(in.size() - received, size_t{1} << (random() % 20));
    const auto came = link.pieces().receive_some(std::span(in).subspan(received, space));
    if (!gone || !came) return false;
    sent += *gone;
    received += *came;
  }
  return std::ranges::equal(in, expected);
}

// Ends a pass, with the other host's help.
Result<bool> settle(BytePieces& pieces) {
  auto is_settled = pieces.settle();
  while (is_settled && !*is_settled) is_settled = pieces.settle();
  return is_settled;
}

TEST_P(HostLinks, pieces_arrive_in_their_order_beside_exchanges) {
  const ConnectedLinks links = connect();
  constexpr uint64_t kSeed = 29;
  std::mt19937_64 random(kSeed);
  std::vector<std::vector<std::byte>> to;
  std::vector<std::vector<std::byte>> back;
  for (int round = 0; round < 40; ++round) {
    to.push_back(random_bytes(random, random() % (size_t{1} << (random() % 22))));
    back.push_back(random_bytes(random, random() % (size_t{1} << (random() % 22))));
  }
  // Every second round is an exchange; behind some a pass ends.
  const auto run = [](HostLink& link, const auto& out, const auto& expected, uint64_t seed) {
    std::mt19937_64 own_random(seed);
    for (size_t round = 0; round < out.size(); ++round) {
      std::vector<std::byte> in(expected[round].size());
      const bool is_right = round % 2 == 0
                                ? move_pieces(link, out[round], expected[round], own_random)
                                : link.exchange(out[round], in) && in == expected[round];
      if (!is_right || (round % 3 == 0 && !settle(link.pieces()))) return round;
    }
    return out.size();
  };
  const auto [one, two] = both_at_once([&] { return run(*links.accepted, back, to, kSeed + 1); },
                                       [&] { return run(*links.connected, to, back, kSeed + 2); });
  EXPECT_EQ(one, to.size()) << "seed " << kSeed;
  EXPECT_EQ(two, to.size()) << "seed " << kSeed;
}

// The host leaves when a message has only begun to go.
TEST_P(HostLinks, a_host_that_has_gone_ends_all_pieces_and_is_named) {
  ConnectedLinks links = connect();
  const std::vector<std::byte> out(1 << 20);
  std::vector<std::byte> in(1 << 20);
  ASSERT_TRUE(links.accepted->pieces().send_some(out).has_value());
  ASSERT_TRUE(links.connected->pieces().receive_some(std::span(in).first(100)).has_value());
  links.accepted.reset();
  Result<size_t> moved = 0;
  for (const auto end = std::chrono::steady_clock::now() + 60s;
       moved && std::chrono::steady_clock::now() < end;) {
    moved = links.connected->pieces().send_some(out);
    if (moved) moved = links.connected->pieces().receive_some(in);
  }
  ASSERT_FALSE(moved.has_value());
  EXPECT_EQ(moved.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(moved.error().message, HasSubstr("127.0.0.1"));
  EXPECT_FALSE(links.connected->exchange({}, in).has_value());
}

// With what has only begun to go over it.
TEST_P(HostLinks, a_link_that_ends_leaves_those_beside_it_alone) {
  ConnectedLinks links = connect();
  const ConnectedLinks beside = connect(60s, links.accepted.get());
  const std::vector<std::byte> out(1 << 20, std::byte{7});
  std::vector<std::byte> in(1 << 20);
  ASSERT_TRUE(links.accepted->pieces().send_some(out).has_value());
  ASSERT_TRUE(links.accepted->pieces().receive_some(in).has_value());
  ASSERT_TRUE(links.connected->pieces().receive_some(std::span(in).first(100)).has_value());
  links = {};
  const auto [one, two] = both_at_once([&] { return beside.accepted->exchange(out, {}); },
                                       [&] { return beside.connected->exchange({}, in); });
  EXPECT_TRUE(one && two);
  EXPECT_EQ(in, out);
}

TEST_P(HostLinks, a_host_that_has_gone_ends_all_exchanges_and_is_named) {
  ConnectedLinks links = connect();
  links.accepted.reset();
  const std::vector<std::byte> out(1 << 20);
  std::vector<std::byte> in(1 << 20);
  const auto first = links.connected->exchange(out, in);
  ASSERT_FALSE(first.has_value());
  EXPECT_EQ(first.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(first.error().message, HasSubstr("127.0.0.1"));
  EXPECT_FALSE(links.connected->exchange({}, in).has_value());
}

TEST_P(HostLinks, a_host_that_goes_during_a_wait_ends_it) {
  ConnectedLinks links = connect();
  const auto [gone, received] = both_at_once(
      [&] {
        std::this_thread::sleep_for(50ms);
        links.accepted.reset();
        return true;
      },
      [&] {
        std::vector<std::byte> in(1 << 14);
        return links.connected->exchange({}, in);
      });
  EXPECT_FALSE(received.has_value());
}

TEST_P(HostLinks, a_silent_host_is_given_up_after_the_patience) {
  const ConnectedLinks links = connect(300ms);
  const std::vector<std::byte> out(1 << 14);
  std::vector<std::byte> in(1 << 14);
  const auto received = links.connected->exchange(out, in);
  ASSERT_FALSE(received.has_value());
  EXPECT_EQ(received.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(received.error().message, HasSubstr("300 ms"));
  EXPECT_FALSE(links.connected->exchange(out, {}).has_value());
}

TEST_P(HostLinks, shutting_down_from_another_thread_ends_a_wait_and_all_later_exchanges) {
  const ConnectedLinks links = connect();
  const auto [one, received] = both_at_once(
      [&] {
        std::this_thread::sleep_for(50ms);
        links.connected->shut_down();
        return true;
      },
      [&] {
        std::vector<std::byte> in(1 << 14);
        return links.connected->exchange({}, in);
      });
  ASSERT_FALSE(received.has_value());
  EXPECT_FALSE(links.connected->exchange(std::vector<std::byte>(8), {}).has_value());
}

// Transports that send messages, and say what was sent; over a stream bytes follow one another.
class MessageLinks : public HostLinks {};

std::vector<HostTransport> tested_messages() {
  std::vector<HostTransport> rows = tested_transports();
  std::erase_if(rows, [](const HostTransport& row) { return row.name == "tcp"; });
  return rows;
}

INSTANTIATE_TEST_SUITE_P(All, MessageLinks, ::testing::ValuesIn(tested_messages()),
                         [](const auto& each) { return std::string(each.param.name); });

// Variables of UCX, which reads them when a link is made.
class UcxVariables {
 public:
  explicit UcxVariables(std::map<std::string, std::string> values) : values_(std::move(values)) {
    for (const auto& [name, value] : values_) {
      ::setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    }
  }
  ~UcxVariables() {
    for (const auto& [name, value] : values_) {
      ::unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
    }
  }
  UcxVariables(const UcxVariables&) = delete;
  UcxVariables& operator=(const UcxVariables&) = delete;

 private:
  std::map<std::string, std::string> values_;
};

// UCX needs the sender's help over it: memory that both see is read without.
const std::map<std::string, std::string> kOverTcp = {{"UCX_TLS", "tcp,self"}};

// All of what has begun to go comes, and only then does the third host end the first one's wait.
TEST_P(MessageLinks, a_host_that_waits_at_one_link_helps_what_goes_over_another) {
  const UcxVariables variables(kOverTcp);
  const ConnectedLinks links = connect(20s);
  const ConnectedLinks beside = connect(20s, links.accepted.get());
  std::mt19937_64 random(1);
  const auto out = random_bytes(random, 2 * MessagePieces::kMessageBytes);
  std::vector<std::byte> in(out.size());
  std::vector<std::byte> word(8);
  ASSERT_EQ(links.accepted->pieces().send_some(out).value(), 0);
  const auto [waited, came] = both_at_once(
      [&] { return beside.accepted->exchange({}, word); },
      [&] {
        size_t received = 0;
        const auto end = std::chrono::steady_clock::now() + 10s;
        while (received < in.size() && std::chrono::steady_clock::now() < end) {
          received +=
              links.connected->pieces().receive_some(std::span(in).subspan(received)).value_or(0);
        }
        std::vector<std::byte> said(8);
        EXPECT_TRUE(beside.connected->exchange(said, {}).has_value());
        return received;
      });
  EXPECT_TRUE(waited.has_value());
  EXPECT_EQ(came, out.size());
  EXPECT_EQ(in, out);
}

TEST_P(MessageLinks, a_host_leaves_a_pass_when_the_other_one_has_all_of_it) {
  const ConnectedLinks links = connect();
  BytePieces& sender = links.accepted->pieces();
  BytePieces& receiver = links.connected->pieces();
  const std::vector<std::byte> out(1000, std::byte{7});
  std::vector<std::byte> in(out.size());
  size_t sent = 0;
  size_t received = 0;
  while (sent < out.size() || received < in.size()) {
    sent += sender.send_some(std::span(out).subspan(sent)).value();
    received += receiver.receive_some(std::span(in).subspan(received)).value();
  }
  for (int look = 0; look < 100; ++look) EXPECT_FALSE(sender.settle().value());
  bool has_left = receiver.settle().value();
  while (!sender.settle().value()) {
    if (!has_left) has_left = receiver.settle().value();
  }
  while (!has_left) has_left = receiver.settle().value();
  EXPECT_EQ(in, out);
}

// The end of what the first host has sent lies in its process still when UCX is done with it: it
// writes into small buffers, and the second host is slow to read.
TEST_P(MessageLinks, nothing_is_left_behind_by_a_host_that_has_left_a_pass) {
  auto values = kOverTcp;
  values.insert({{"UCX_TCP_SNDBUF", "4k"},
                 {"UCX_TCP_RCVBUF", "4k"},
                 {"UCX_TCP_TX_SEG_SIZE", "256k"},
                 {"UCX_TCP_RX_SEG_SIZE", "256k"},
                 {"UCX_ZCOPY_THRESH", "inf"},
                 {"UCX_RNDV_THRESH", "inf"}});
  const UcxVariables variables(values);
  const ConnectedLinks links = connect();
  std::mt19937_64 random(1);
  const auto out = random_bytes(random, 100'000);
  const auto [has_left, came] = both_at_once(
      [&] {
        BytePieces& pieces = links.accepted->pieces();
        for (size_t sent = 0; sent < out.size();) {
          sent += pieces.send_some(std::span(out).subspan(sent)).value();
        }
        return settle(pieces).has_value();
      },
      [&] {
        BytePieces& pieces = links.connected->pieces();
        std::vector<std::byte> in(out.size());
        const auto end = std::chrono::steady_clock::now() + 20s;
        for (size_t received = 0; received < in.size();) {
          if (std::chrono::steady_clock::now() > end) {
            links.accepted->shut_down();
            break;
          }
          std::this_thread::sleep_for(1ms);
          received += pieces.receive_some(std::span(in).subspan(received)).value();
        }
        EXPECT_EQ(in, out);
        return settle(pieces).has_value();
      });
  EXPECT_TRUE(has_left && came);
}

TEST_P(MessageLinks, a_host_that_goes_instead_of_ending_a_pass_is_named) {
  ConnectedLinks links = connect();
  EXPECT_FALSE(links.connected->pieces().settle().value());
  links.accepted.reset();
  const auto is_settled = settle(links.connected->pieces());
  ASSERT_FALSE(is_settled.has_value());
  EXPECT_EQ(is_settled.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(is_settled.error().message, HasSubstr("127.0.0.1"));
}

TEST_P(MessageLinks, an_exchange_of_another_length_ends_the_link) {
  const std::tuple<size_t, size_t, const char*> cases[] = {
      {10, 20, "10 bytes came in an exchange of 20"},
      {20, 10, "more bytes came than the exchange has"},
      {1 << 20, 2 << 20, "1048576 bytes came in an exchange of 2097152"},
      {2 << 20, 1 << 20, "more bytes came than the exchange has"},
  };
  for (const auto& [sent, expected, words] : cases) {
    SCOPED_TRACE(words);
    const ConnectedLinks links = connect();
    const auto [one, received] = both_at_once(
        [&, bytes = sent] { return links.connected->exchange(std::vector<std::byte>(bytes), {}); },
        [&, bytes = expected] {
          std::vector<std::byte> in(bytes);
          auto result = links.accepted->exchange({}, in);
          links.accepted->shut_down();
          links.connected->shut_down();  // it may wait for the other host to take it
          return result;
        });
    ASSERT_FALSE(received.has_value());
    EXPECT_THAT(received.error().message, HasSubstr(words));
    EXPECT_THAT(received.error().message, HasSubstr("127.0.0.1"));
    EXPECT_FALSE(links.accepted->exchange({}, {}).has_value());
  }
}

TEST(HostTransports, an_unknown_name_is_answered_with_those_that_there_are) {
  const auto none = find_host_transport("pigeons");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(none.error().message, HasSubstr("tcp"));
  const auto tcp = find_host_transport("tcp");
  ASSERT_TRUE(tcp.has_value());
  EXPECT_TRUE((*tcp)->encrypts);
}

// Links are streams' or they are none: nothing else may be asked of a row that joins GPUs.
TEST(HostTransports, the_one_that_joins_gpus_makes_no_links) {
  for (const HostTransport& row : host_transports()) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(row.joins_gpus, row.name == kGpuTransport);
    EXPECT_EQ(row.joins_gpus, row.make == nullptr);
    EXPECT_EQ(row.encrypts, row.name == "tcp");
  }
}

}  // namespace
}  // namespace lockstep
