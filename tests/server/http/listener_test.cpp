// The sockets on which the server listens: Unix sockets, and what is in their way.
#include "server/http/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "server/http/networks.h"
#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

// A folder of this process's own, gone with the test.
class UnixSocket : public testing::Test {
 protected:
  UnixSocket() { std::filesystem::create_directory(folder_); }
  ~UnixSocket() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ / "socket"; }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("listener_test.{}", getpid());
};

uint32_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0);
  return status.st_mode & 0777U;
}

TEST_F(UnixSocket, serves_and_is_removed_at_the_end) {
  for (const uint32_t mode : {0600U, 0660U, 0666U}) {
    {
      TestServer server({}, [&](HttpOptions& options) {
        options.host = "unix:" + path();
        options.socket_mode = mode;
      });
      EXPECT_EQ(server.server().addresses(), std::vector<std::string>{"unix:" + path()});
      EXPECT_EQ(mode_of(path()), mode);
      RawClient client(path());
      client.send(request_text("GET", "/hello") + request_text("GET", "/stream"));
      EXPECT_EQ(client.receive()->body, "hello");
      EXPECT_EQ(client.receive()->body, "onetwothree");
    }
    EXPECT_FALSE(std::filesystem::exists(path()));
  }
}

TEST_F(UnixSocket, clients_of_it_have_no_limit_per_address) {
  HttpLimits limits;
  limits.connections_per_address = 2;
  TestServer server(limits, [&](HttpOptions& options) { options.host = "unix:" + path(); });
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int count = 0; count < 10; ++count) {
    clients.push_back(std::make_unique<RawClient>(path()));
    clients.back()->send(request_text("GET", "/hello"));
    EXPECT_EQ(clients.back()->receive()->status, 200);
  }
}

TEST_F(UnixSocket, one_that_a_dead_process_left_is_replaced) {
  {
    const Descriptor dead(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(dead.number(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path()));
  EXPECT_TRUE(Listener::bind_path(path(), 0600).has_value());
}

TEST_F(UnixSocket, one_that_is_listened_on_is_an_error_and_stays) {
  const auto first = Listener::bind_path(path(), 0600);
  ASSERT_TRUE(first.has_value());
  const auto second = Listener::bind_path(path(), 0600);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().kind, ErrorKind::kMachineRefused);
  EXPECT_NE(second.error().message.find(path()), std::string::npos);
  RawClient client(path());
}

TEST_F(UnixSocket, a_file_in_its_place_is_an_error_and_stays) {
  std::ofstream(path()) << "precious";
  EXPECT_FALSE(Listener::bind_path(path(), 0600).has_value());
  EXPECT_EQ(std::filesystem::file_size(path()), 8U);
}

TEST_F(UnixSocket, a_path_that_is_too_long_or_empty_is_an_error) {
  EXPECT_FALSE(Listener::bind_path("", 0600).has_value());
  const std::string prefix = path() + "-";
  EXPECT_TRUE(Listener::bind_path(prefix + std::string(107 - prefix.size(), 'x'), 0600));
  EXPECT_FALSE(Listener::bind_path(prefix + std::string(108 - prefix.size(), 'x'), 0600));
}

TEST(Listener, without_passed_sockets_systemd_is_an_error_that_says_so) {
  HttpOptions options;
  options.host = "systemd";
  const auto server = HttpServer::bind(options, {});
  ASSERT_FALSE(server.has_value());
  EXPECT_NE(server.error().message.find("LISTEN_FDS"), std::string::npos);
}

// A list of addresses as getaddrinfo() gives them.
class Addresses {
 public:
  Addresses(std::initializer_list<const char*> texts, uint16_t port) : sockets_(texts.size()) {
    for (const char* text : texts) {
      sockaddr_in& address = sockets_[nodes_.size()];
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      EXPECT_EQ(inet_pton(AF_INET, text, &address.sin_addr), 1);
      addrinfo node{};
      node.ai_family = AF_INET;
      node.ai_addr = reinterpret_cast<sockaddr*>(&address);
      node.ai_addrlen = sizeof(address);
      nodes_.push_back(node);
    }
    for (size_t index = 1; index < nodes_.size(); ++index) {
      nodes_[index - 1].ai_next = &nodes_[index];
    }
  }
  const addrinfo* list() const { return nodes_.data(); }

 private:
  std::vector<sockaddr_in> sockets_;
  std::vector<addrinfo> nodes_;
};

TEST(Listener, listens_on_the_first_address_of_a_name_on_which_it_can) {
  // The first is of a network for documentation: no machine has it.
  const Addresses addresses({"192.0.2.1", "127.0.0.2", "127.0.0.3"}, 0);
  const auto listener = Listener::bind_first("a.name", 0, addresses.list());
  ASSERT_TRUE(listener) << listener.error().message;
  EXPECT_EQ(listener->address(), fmt::format("a.name:{}", listener->port()));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ASSERT_EQ(getsockname(listener->descriptor(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  EXPECT_EQ(PeerAddress::of(bound).text, "127.0.0.2");
}

TEST(Listener, a_name_none_of_whose_addresses_can_be_had_is_an_error_with_each_reason) {
  const auto taken = Listener::bind("127.0.0.1", 0);
  ASSERT_TRUE(taken);
  const Addresses addresses({"192.0.2.1", "127.0.0.1"}, taken->port());
  const auto listener = Listener::bind_first("a.name", taken->port(), addresses.list());
  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().kind, ErrorKind::kMachineRefused);
  for (const std::string& part :
       {fmt::format("cannot listen on a.name port {}", taken->port()), std::string("192.0.2.1: "),
        std::string("127.0.0.1: "), std::string(std::strerror(EADDRINUSE)),
        std::string(std::strerror(EADDRNOTAVAIL))}) {
    EXPECT_NE(listener.error().message.find(part), std::string::npos)
        << part << " in " << listener.error().message;
  }
}

TEST(PeerAddress, counts_ipv4_by_address_and_ipv6_by_network_and_both_by_site) {
  const auto peer = [](int family, const char* text) {
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    void* bytes = family == AF_INET
                      ? static_cast<void*>(&reinterpret_cast<sockaddr_in&>(address).sin_addr)
                      : &reinterpret_cast<sockaddr_in6&>(address).sin6_addr;
    EXPECT_EQ(inet_pton(family, text, bytes), 1);
    return PeerAddress::of(address);
  };
  EXPECT_EQ(peer(AF_INET, "192.0.2.1").text, "192.0.2.1");
  EXPECT_NE(peer(AF_INET, "192.0.2.1").network, peer(AF_INET, "192.0.2.2").network);
  EXPECT_EQ(peer(AF_INET6, "::ffff:192.0.2.1").network, peer(AF_INET, "192.0.2.1").network);
  EXPECT_EQ(peer(AF_INET6, "2001:db8::1").text, "2001:db8::1");
  EXPECT_EQ(peer(AF_INET6, "2001:db8::1").network, peer(AF_INET6, "2001:db8::ffff:2").network);
  EXPECT_NE(peer(AF_INET6, "2001:db8::1").network, peer(AF_INET6, "2001:db8:0:1::1").network);
  EXPECT_EQ(peer(AF_INET6, "2001:db8::1").network.size(), 8U);
  sockaddr_storage local{};
  local.ss_family = AF_UNIX;
  EXPECT_EQ(PeerAddress::of(local).network, "");

  // Sites.
  EXPECT_EQ(peer(AF_INET, "192.0.2.1").site, peer(AF_INET, "192.0.2.2").site);
  EXPECT_NE(peer(AF_INET, "192.0.2.1").site, peer(AF_INET, "192.0.3.1").site);
  EXPECT_EQ(peer(AF_INET6, "::ffff:192.0.2.1").site, peer(AF_INET, "192.0.2.2").site);
  EXPECT_EQ(peer(AF_INET6, "2001:db8::1").site, peer(AF_INET6, "2001:db8:0:1::1").site);
  EXPECT_NE(peer(AF_INET6, "2001:db8::1").site, peer(AF_INET6, "2001:db8:1::1").site);
  for (const char* text : {"10.1.2.3", "127.0.0.1", "169.254.1.1", "172.16.0.1", "172.31.255.255",
                           "192.168.0.1", "100.64.0.1", "100.127.0.1"}) {
    EXPECT_EQ(peer(AF_INET, text).site, text);
  }
  for (const char* text : {"11.1.2.3", "172.32.0.1", "100.128.0.1"}) {
    EXPECT_EQ(peer(AF_INET, text).site.size(), 3U);
  }
  for (const char* text : {"fd00::1", "fe80::1", "::1"}) {
    EXPECT_EQ(peer(AF_INET6, text).site, peer(AF_INET6, text).network);
  }
  EXPECT_EQ(PeerAddress::of(local).site, "");
}

}  // namespace
}  // namespace lockstep
