// Streams between hosts, plain and in TLS, over this machine's loopback.
#include "engine/collectives/host_stream.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "engine/base/descriptor.h"
#include "engine/collectives/host_address.h"
#include "tests/engine/collectives/connected_hosts.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// A connection to 127.0.0.1 that no HostStream is over.
Descriptor raw_connection(uint16_t port, std::string_view says = {}) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.number(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(send(socket.number(), says.data(), says.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(says.size()));
  return socket;
}

bool has_ipv6() {
  const Descriptor socket(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return bind(socket.number(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

// Limits the kernel's buffers of both ends, so that a send of kMuch cannot end before the other end
// receives, whatever this machine's settings are.
ConnectedHosts with_small_buffers(ConnectedHosts hosts) {
  const int bytes = 64 << 10;
  for (const HostStream* const end : {hosts.accepted.get(), hosts.connected.get()}) {
    for (const int buffer : {SO_SNDBUF, SO_RCVBUF}) {
      EXPECT_EQ(setsockopt(end->descriptor(), SOL_SOCKET, buffer, &bytes, sizeof bytes), 0);
    }
  }
  return hosts;
}
constexpr size_t kMuch = size_t{16} << 20U;

class HostStreams : public ::testing::TestWithParam<bool> {
 protected:
  HostStreamOptions options() const { return host_options(GetParam()); }
  ConnectedHosts connect() const { return connect_hosts(options(), options()); }
};

INSTANTIATE_TEST_SUITE_P(All, HostStreams, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "tls" : "plain"; });

TEST_P(HostStreams, bytes_arrive_in_both_directions_at_once_whatever_the_sizes) {
  const ConnectedHosts hosts = connect();
  EXPECT_EQ(hosts.accepted->is_encrypted(), GetParam());
  EXPECT_EQ(hosts.connected->is_encrypted(), GetParam());
  constexpr uint64_t kSeed = 28;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 60; ++round) {
    const auto to = random_bytes(random, random() % (size_t{1} << (random() % 20)));
    const auto back = random_bytes(random, random() % (size_t{1} << (random() % 20)));
    std::vector<std::byte> got_to(to.size());
    std::vector<std::byte> got_back(back.size());
    const auto [one, two] = both_at_once([&] { return hosts.accepted->exchange(back, got_to); },
                                         [&] { return hosts.connected->exchange(to, got_back); });
    ASSERT_TRUE(one && two) << "seed " << kSeed << ", round " << round;
    ASSERT_TRUE(got_to == to && got_back == back) << "seed " << kSeed << ", round " << round;
  }
}

TEST_P(HostStreams, sixty_four_mebibytes_both_ways_do_not_block_one_another) {
  const ConnectedHosts hosts = connect();
  std::mt19937_64 random(1);
  auto bytes = random_bytes(random, size_t{1} << 20U);
  bytes.resize(size_t{64} << 20U);
  std::vector<std::byte> one_got(bytes.size());
  std::vector<std::byte> two_got(bytes.size());
  const auto [one, two] = both_at_once([&] { return hosts.accepted->exchange(bytes, one_got); },
                                       [&] { return hosts.connected->exchange(bytes, two_got); });
  ASSERT_TRUE(one && two);
  EXPECT_TRUE(one_got == bytes && two_got == bytes);
}

TEST_P(HostStreams, one_that_only_sends_first_is_received_by_one_that_does_both) {
  const ConnectedHosts hosts = connect();
  std::mt19937_64 random(2);
  const auto bytes = random_bytes(random, size_t{8} << 20U);
  std::vector<std::byte> one_got(bytes.size());
  std::vector<std::byte> two_got(bytes.size());
  const auto [one, two] = both_at_once(
      [&] {
        auto sent = hosts.accepted->send(bytes);
        return sent ? hosts.accepted->receive(one_got) : sent;
      },
      [&] { return hosts.connected->exchange(bytes, two_got); });
  ASSERT_TRUE(one && two);
  EXPECT_TRUE(one_got == bytes && two_got == bytes);
}

TEST_P(HostStreams, one_that_never_spins_exchanges_as_well) {
  HostStreamOptions sleeping = options();
  sleeping.spins = false;
  const ConnectedHosts hosts = connect_hosts(sleeping, sleeping);
  std::byte word[1] = {std::byte{7}};
  const auto [one, two] = both_at_once(
      [&] {
        std::this_thread::sleep_for(20ms);
        return hosts.accepted->send(word);
      },
      [&] {
        std::byte got[1] = {};
        const auto received = hosts.connected->receive(got);
        return received && got[0] == word[0];
      });
  EXPECT_TRUE(one && two);
}

TEST_P(HostStreams, a_host_that_has_gone_ends_all_calls_and_is_named) {
  ConnectedHosts hosts = connect();
  const std::string peer = hosts.connected->peer();
  hosts.accepted.reset();
  std::byte got[8] = {};
  const auto first = hosts.connected->receive(got);
  ASSERT_FALSE(first.has_value());
  EXPECT_EQ(first.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(first.error().message, HasSubstr(peer));
  const auto second = hosts.connected->send(got);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().message, first.error().message);
  EXPECT_FALSE(hosts.connected->wait_readable(0ms).has_value());
}

TEST_P(HostStreams, sending_to_a_host_that_has_gone_fails_without_a_signal) {
  ConnectedHosts hosts = with_small_buffers(connect());
  hosts.accepted.reset();
  const std::vector<std::byte> bytes(kMuch);
  const auto sent = hosts.connected->send(bytes);
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().kind, ErrorKind::kMachineRefused);
}

TEST_P(HostStreams, a_silent_host_is_given_up_after_the_patience) {
  HostStreamOptions impatient = options();
  impatient.patience = 300ms;
  const ConnectedHosts hosts = connect_hosts(options(), impatient);
  std::byte got[8] = {};
  const auto before = std::chrono::steady_clock::now();
  const auto received = hosts.connected->receive(got);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 300ms);
  ASSERT_FALSE(received.has_value());
  EXPECT_EQ(received.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(received.error().message, HasSubstr("300 ms"));
}

TEST_P(HostStreams, a_host_that_does_not_receive_is_given_up_after_the_patience) {
  HostStreamOptions impatient = options();
  impatient.patience = 300ms;
  const ConnectedHosts hosts = with_small_buffers(connect_hosts(options(), impatient));
  const std::vector<std::byte> bytes(kMuch);
  const auto sent = hosts.connected->send(bytes);
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().kind, ErrorKind::kMachineRefused);
}

TEST_P(HostStreams, a_host_that_takes_a_byte_now_and_then_is_given_up_in_time) {
  const ConnectedHosts hosts = with_small_buffers(connect());
  std::atomic<bool> is_over = false;
  std::thread slow([&] {
    std::byte one = {};
    while (!is_over && hosts.accepted->receive({&one, 1})) std::this_thread::sleep_for(1ms);
  });
  // At that rate they would take hours.
  const std::vector<std::byte> bytes(kMuch);
  const auto sent = hosts.connected->send_within(bytes, 500ms);
  is_over = true;
  hosts.connected->shut_down();
  slow.join();
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(sent.error().message, HasSubstr("127.0.0.1"));
  EXPECT_THAT(sent.error().message, HasSubstr("bytes are left after 500 ms"));
}

TEST_P(HostStreams, what_goes_without_waiting_is_sent_and_the_rest_later) {
  const ConnectedHosts hosts = with_small_buffers(connect());
  std::mt19937_64 random(28);
  const auto bytes = random_bytes(random, kMuch);
  // Nobody receives: not all of it goes, and no call waits for the patience of a minute.
  size_t sent = 0;
  while (true) {
    const auto some = hosts.connected->send_some(std::span(bytes).subspan(sent));
    ASSERT_TRUE(some) << some.error().message;
    if (*some == 0) break;
    sent += *some;
  }
  ASSERT_LT(sent, bytes.size());
  std::vector<std::byte> got(bytes.size());
  const auto [one, two] =
      both_at_once([&] { return hosts.connected->send(std::span(bytes).subspan(sent)); },
                   [&] { return hosts.accepted->receive(got); });
  ASSERT_TRUE(one && two);
  EXPECT_TRUE(got == bytes);
}

TEST_P(HostStreams, shutting_down_from_another_thread_ends_a_wait_and_all_later_calls) {
  const ConnectedHosts hosts = connect();
  const auto [one, received] = both_at_once(
      [&] {
        std::this_thread::sleep_for(50ms);
        hosts.connected->shut_down();
        return true;
      },
      [&] {
        std::byte got[8] = {};
        return hosts.connected->receive(got);
      });
  ASSERT_FALSE(received.has_value());
  EXPECT_THAT(received.error().message, HasSubstr("shut down"));
  EXPECT_FALSE(hosts.connected->send(std::vector<std::byte>(1)).has_value());
}

TEST_P(HostStreams, what_had_come_before_shutting_down_is_not_received_after) {
  const ConnectedHosts hosts = connect();
  ASSERT_TRUE(hosts.accepted->send(std::vector<std::byte>(8)).has_value());
  ASSERT_TRUE(hosts.connected->wait_readable(60s).value_or(false));
  hosts.connected->shut_down();
  std::byte got[8] = {};
  EXPECT_FALSE(hosts.connected->receive(got).has_value());
}

TEST_P(HostStreams, waiting_tells_whether_there_is_something_to_receive) {
  const ConnectedHosts hosts = connect();
  EXPECT_FALSE(hosts.connected->wait_readable(10ms).value());
  ASSERT_TRUE(hosts.accepted->send(std::vector<std::byte>(2, std::byte{3})).has_value());
  EXPECT_TRUE(hosts.connected->wait_readable(60s).value());
  std::byte one[1] = {};
  ASSERT_TRUE(hosts.connected->receive(one).has_value());
  // The second byte may be in the library by now, not in the socket.
  EXPECT_TRUE(hosts.connected->wait_readable(0ms).value());
  ASSERT_TRUE(hosts.connected->receive(one).has_value());
  EXPECT_EQ(one[0], std::byte{3});
  EXPECT_FALSE(hosts.connected->wait_readable(0ms).value());
}

TEST_P(HostStreams, both_ends_tell_their_addresses) {
  const ConnectedHosts hosts = connect();
  EXPECT_EQ(hosts.connected->local_address(), "127.0.0.1");
  EXPECT_EQ(hosts.accepted->local_address(), "127.0.0.1");
  EXPECT_THAT(hosts.accepted->peer(), ::testing::StartsWith("127.0.0.1:"));
}

TEST_P(HostStreams, ipv6_and_names_are_addresses_too) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  const ConnectedHosts six = connect_hosts(options(), options(), "[::1]");
  EXPECT_EQ(six.connected->local_address(), "::1");
  EXPECT_THAT(six.accepted->peer(), ::testing::StartsWith("[::1]:"));
  // Every interface: of both families.
  auto listener = HostListener::open(":0", options());
  ASSERT_TRUE(listener.has_value()) << listener.error().message;
  for (const std::string host : {"127.0.0.1", "[::1]", "localhost"}) {
    const auto [connected, accepted] = both_at_once(
        [&] { return std::optional(connect_patiently(at_port(**listener, host), options())); },
        [&] { return (*listener)->accept(5min); });
    ASSERT_TRUE(connected->has_value() && accepted.has_value() && *accepted != nullptr) << host;
    if (host == "127.0.0.1") {
      EXPECT_EQ((*accepted)->local_address(), host);
    }
  }
}

TEST_P(HostStreams, accepting_ends_where_nobody_comes) {
  auto listener = HostListener::open("127.0.0.1:0", options());
  ASSERT_TRUE(listener.has_value());
  const auto accepted = (*listener)->accept(10ms);
  ASSERT_TRUE(accepted.has_value());
  EXPECT_EQ(*accepted, nullptr);
}

TEST_P(HostStreams, what_is_no_address_is_refused) {
  for (const std::string address : {"", "host", "host:", "host:x", "host:70000", "::1:80", "[]:80",
                                    "[::1:80", "a b:80", "host:-1", "host:1x"}) {
    const auto listener = HostListener::open(address, options());
    ASSERT_FALSE(listener.has_value()) << address;
    EXPECT_EQ(listener.error().kind, ErrorKind::kInvalidInput) << address;
    const auto connected = connect_host(address, options());
    ASSERT_FALSE(connected.has_value()) << address;
    EXPECT_EQ(connected.error().kind, ErrorKind::kInvalidInput) << address;
  }
  EXPECT_EQ(connect_host(":80", options()).error().kind, ErrorKind::kInvalidInput);
  EXPECT_EQ(connect_host("host:0", options()).error().kind, ErrorKind::kInvalidInput);
}

TEST_P(HostStreams, where_nobody_listens_a_later_try_may_succeed) {
  uint16_t port = 0;
  {
    auto listener = HostListener::open("127.0.0.1:0", options());
    ASSERT_TRUE(listener.has_value());
    port = (*listener)->port();
    const auto second = HostListener::open(at_port(**listener), options());
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().kind, ErrorKind::kMachineRefused);
  }
  const auto connected = connect_host("127.0.0.1:" + std::to_string(port), options());
  ASSERT_FALSE(connected.has_value());
  EXPECT_EQ(connected.error().kind, ErrorKind::kUnavailable);
}

// The result of connecting with these options to a listener that has a secret.
Error refusal_of(const HostStreamOptions& connecting,
                 Result<std::unique_ptr<HostStream>>& accepted) {
  auto listener = HostListener::open("127.0.0.1:0", host_options(true));
  std::atomic<bool> done = false;
  std::optional<Error> refusal;
  std::thread thread([&] {
    refusal = connect_host(at_port(**listener), connecting).error();
    done = true;
  });
  while (!done) accepted = (*listener)->accept(10ms);
  thread.join();
  return *refusal;
}

TEST(HostSecrets, a_wrong_secret_is_told_to_the_one_that_connects) {
  HostStreamOptions wrong = host_options(true);
  wrong.secret = some_secret(2);
  Result<std::unique_ptr<HostStream>> accepted;
  const Error refusal = refusal_of(wrong, accepted);
  EXPECT_EQ(refusal.kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(refusal.message, HasSubstr("do not have the same secret"));
  EXPECT_TRUE(accepted.has_value() && *accepted == nullptr);
}

TEST(HostSecrets, a_host_without_the_secret_gets_no_byte_through) {
  auto listener = HostListener::open("127.0.0.1:0", host_options(true));
  ASSERT_TRUE(listener.has_value());
  auto plain = connect_host(at_port(**listener), host_options(false));
  ASSERT_TRUE(plain.has_value());
  ASSERT_TRUE((*plain)->send(std::vector<std::byte>(100, std::byte{22})).has_value());
  const auto accepted = (*listener)->accept(100ms);
  ASSERT_TRUE(accepted.has_value());
  EXPECT_EQ(*accepted, nullptr);
}

TEST(HostSecrets, a_host_that_has_no_secret_is_refused_by_one_that_does) {
  auto listener = HostListener::open("127.0.0.1:0", host_options(false));
  ASSERT_TRUE(listener.has_value());
  const auto [connected, closed] = both_at_once(
      [&] { return std::optional(connect_host(at_port(**listener), host_options(true))); },
      [&] {
        const auto accepted = (*listener)->accept(5min);
        return accepted && (*accepted)->send(std::vector<std::byte>(64, std::byte{1})).has_value();
      });
  EXPECT_TRUE(closed);
  EXPECT_FALSE(connected->has_value());
}

TEST(HostSecrets, garbage_and_silence_do_not_keep_members_out) {
  auto listener = HostListener::open("127.0.0.1:0", host_options(true));
  ASSERT_TRUE(listener.has_value());
  std::vector<Descriptor> strangers;
  for (int index = 0; index < 40; ++index) {
    strangers.push_back(raw_connection((*listener)->port()));
    strangers.push_back(raw_connection((*listener)->port(), "GET / HTTP/1.1\r\n\r\n"));
    strangers.push_back(raw_connection((*listener)->port(), "\x16\x03\x01\x02"));
  }
  const auto [connected, accepted] = both_at_once(
      [&] { return std::optional(connect_patiently(at_port(**listener), host_options(true))); },
      [&] { return (*listener)->accept(5min); });
  ASSERT_TRUE(accepted && *accepted && connected->has_value());
  std::byte got[3] = {};
  ASSERT_TRUE((**connected)->send(std::vector<std::byte>(3, std::byte{9})).has_value());
  ASSERT_TRUE((*accepted)->receive(got).has_value());
  EXPECT_EQ(got[2], std::byte{9});
}

TEST(HostSecrets, silent_strangers_are_closed) {
  auto listener = HostListener::open("127.0.0.1:0", host_options(true));
  ASSERT_TRUE(listener.has_value());
  const Descriptor stranger = raw_connection((*listener)->port());
  char one = 0;
  ssize_t count = -1;
  while (count < 0) {
    ASSERT_TRUE((*listener)->accept(50ms).has_value());
    count = recv(stranger.number(), &one, 1, MSG_DONTWAIT);
  }
  EXPECT_EQ(count, 0);
}

// The heap of this process; 0 where a sanitizer has one of its own.
size_t heap_bytes() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

TEST(HostSecrets, silent_strangers_take_no_more_than_their_descriptors) {
  constexpr size_t kStrangers = 100;
  constexpr size_t kBytesOfEach = 1024;
  auto listener = HostListener::open("127.0.0.1:0", host_options(true));
  ASSERT_TRUE(listener.has_value());
  std::vector<Descriptor> strangers;
  strangers.reserve(kStrangers);
  for (size_t index = 0; index < kStrangers; ++index) {
    strangers.push_back(raw_connection((*listener)->port()));
  }
  const size_t before = heap_bytes();
  // Each call takes one of those that have connected.
  for (size_t index = 0; index <= kStrangers; ++index) {
    ASSERT_TRUE((*listener)->accept(0ms).has_value());
  }
  EXPECT_LE(heap_bytes(), before + kStrangers * kBytesOfEach);
}

TEST(HostAddresses, loopback_is_of_this_machine_alone) {
  for (const std::string address :
       {"127.0.0.1:1", "127.9.9.9:7070", "localhost:7070", "[::1]:7070"}) {
    EXPECT_TRUE(is_loopback_host(address)) << address;
  }
  for (const std::string address : {":7070", "0.0.0.0:7070", "10.0.0.1:7070", "[::]:7070",
                                    "[fe80::1]:1", "node1:7070", "127.0.0.1", "128.0.0.1:1"}) {
    EXPECT_FALSE(is_loopback_host(address)) << address;
  }
}

}  // namespace
}  // namespace lockstep
