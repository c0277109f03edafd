// The cost of a TLS client to the gate is bounded: one call reads a few records, and a client that
// sends records without a byte of a request is given up after a few. No clock is asserted: what is
// left in the socket shows how far a call has read.
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <utility>

#include "engine/base/descriptor.h"
#include "server/http/tls.h"
#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"
#include "tests/server/http/tls_client.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using Status = Transport::Status;

constexpr size_t kRecordsPerCallMax = 9;  // eight, and the one that follows a read-ahead header
constexpr size_t kSilentRecordsMax = 16;
constexpr size_t kFlood = 1000;
constexpr size_t kHandshakeCallsMax = 20;

class TlsCost : public testing::Test {
 protected:
  TlsCost() : files_(make_tls_files(folder_ / "")) {
    auto loaded = TlsIdentity::load(files_.certificate, files_.key);
    EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
    identity_ = std::move(*loaded);
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    const int size = 1 << 20;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    near_ = Descriptor(ends[0]);
    far_ = Descriptor(ends[1]);
    transport_ = identity_->make_transport(far_.number());
  }

  void put(const std::string& bytes) {
    ASSERT_EQ(::send(near_.number(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }

  std::string taken() {
    std::string bytes(1 << 16, '\0');
    const ssize_t count = recv(near_.number(), bytes.data(), bytes.size(), 0);
    bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return bytes;
  }

  // The bytes of what the client has sent that are unread.
  size_t unread_bytes() {
    int count = 0;
    ioctl(far_.number(), FIONREAD, &count);
    return static_cast<size_t>(count);
  }

  // The server's last word.
  Status shake_hands(TlsClient& client) {
    Transport::Outcome outcome{Status::kBlocked};
    put(client.step(""));
    for (size_t call = 0; call < kHandshakeCallsMax && outcome.status == Status::kBlocked; ++call) {
      outcome = transport_->handshake();
      const std::string answer = client.step(taken());
      if (!answer.empty()) put(answer);
      if (client.has_failed()) return transport_->handshake().status;
    }
    return outcome.status;
  }

  Transport::Outcome receive() { return transport_->receive(buffer_.data(), buffer_.size()); }

  test::Folder folder_;
  TlsFiles files_;
  std::unique_ptr<TlsIdentity> identity_;
  Descriptor near_;
  Descriptor far_;
  std::unique_ptr<Transport> transport_;
  std::array<char, 1 << 16> buffer_{};
};

TEST_F(TlsCost, key_updates_are_read_a_few_at_a_time_and_end_the_connection) {
  TlsClient client(TLS1_3_VERSION);
  ASSERT_EQ(shake_hands(client), Status::kDone);
  std::string flood;
  size_t record_bytes = 0;
  for (size_t count = 0; count < kFlood; ++count) {
    const std::string record = client.key_update();
    record_bytes = record.size();
    flood += record;
  }
  put(flood);
  size_t records = 0;
  Status status = Status::kBlocked;
  while (status == Status::kBlocked) {
    const size_t before = unread_bytes();
    status = receive().status;
    const size_t read = before - unread_bytes();
    EXPECT_LE(read, kRecordsPerCallMax * record_bytes);
    ASSERT_GT(read, 0U);
    records += read / record_bytes;
  }
  EXPECT_EQ(status, Status::kWasted);
  EXPECT_LE(records, kSilentRecordsMax + kRecordsPerCallMax);
}

TEST_F(TlsCost, key_updates_among_requests_are_fine) {
  TlsClient client(TLS1_3_VERSION);
  ASSERT_EQ(shake_hands(client), Status::kDone);
  const std::string bytes(16'000, 'b');
  for (int round = 0; round < 60; ++round) {
    std::string sent = client.key_update();
    for (int part = 0; part < 5; ++part) sent += client.encrypted(bytes);
    put(sent);
    size_t received = 0;
    while (received < 5 * bytes.size()) {
      const auto outcome = receive();
      ASSERT_TRUE(outcome.status == Status::kDone || outcome.status == Status::kBlocked) << round;
      received += outcome.bytes;
    }
  }
}

TEST_F(TlsCost, a_byte_with_each_key_update_earns_no_more_of_them) {
  TlsClient client(TLS1_3_VERSION);
  ASSERT_EQ(shake_hands(client), Status::kDone);
  std::string flood;
  for (size_t count = 0; count < kFlood; ++count) {
    flood += client.key_update();
    flood += client.encrypted("b");
  }
  put(flood);
  size_t bytes = 0;
  for (;;) {
    const auto outcome = receive();
    bytes += outcome.bytes;
    if (outcome.status == Status::kWasted) break;
    ASSERT_TRUE(outcome.status == Status::kDone || outcome.status == Status::kBlocked);
    ASSERT_LE(bytes, kSilentRecordsMax + 1);
  }
}

TEST_F(TlsCost, a_hello_in_pieces_is_read_a_few_at_a_time_and_ends_the_connection) {
  const std::string record = {0x16, 0x03, 0x01, 0x00, 0x01};
  std::string flood;
  // A hello of 128 KiB, byte for byte.
  for (const char byte : {'\x01', '\x02', '\x00', '\x00'}) flood += record + byte;
  for (size_t count = 0; count < kFlood; ++count) flood += record + '\x03';
  put(flood);
  Status status = Status::kBlocked;
  size_t calls = 0;
  while (status == Status::kBlocked && ++calls < kFlood) {
    const size_t before = unread_bytes();
    status = transport_->handshake().status;
    EXPECT_LE(before - unread_bytes(), kRecordsPerCallMax * (record.size() + 1));
  }
  EXPECT_EQ(status, Status::kWasted);
  EXPECT_GT(unread_bytes(), flood.size() * 9 / 10);
}

TEST_F(TlsCost, a_request_for_a_new_handshake_is_not_followed) {
  TlsClient client(TLS1_2_VERSION);
  ASSERT_EQ(shake_hands(client), Status::kDone);
  SSL_renegotiate(client.session());
  SSL_do_handshake(client.session());
  put(client.encrypted(""));
  EXPECT_NE(receive().status, Status::kDone);
  EXPECT_LT(taken().size(), 100U);  // an alert, and no certificate
}

// Records of TLS 1.2 that bring no byte of a request, and their type: without text, and requests
// for a new handshake (the beginning of a hello), each of which is answered with a warning.
class SilentRecords : public TlsCost,
                      public testing::WithParamInterface<std::pair<int, std::string>> {};

TEST_P(SilentRecords, are_read_a_few_at_a_time_and_end_the_connection) {
  TlsClient client(TLS1_2_VERSION, "ECDHE-ECDSA-AES128-GCM-SHA256");
  ASSERT_EQ(shake_hands(client), Status::kDone);
  const auto& [type, text] = GetParam();
  // They are records as the server takes them: what follows a few of them is heard.
  std::string flood;
  for (int count = 0; count < 3; ++count)
    flood += client.raw_record(static_cast<uint8_t>(type), text);
  put(flood + client.raw_record(SSL3_RT_APPLICATION_DATA, "heard"));
  std::string heard;
  for (int call = 0; call < 10 && heard.empty(); ++call) {
    const auto outcome = receive();
    ASSERT_TRUE(outcome.status == Status::kDone || outcome.status == Status::kBlocked);
    heard.assign(buffer_.data(), outcome.bytes);
  }
  EXPECT_EQ(heard, "heard");

  flood.clear();
  for (size_t count = 0; count < kFlood; ++count)
    flood += client.raw_record(static_cast<uint8_t>(type), text);
  const size_t record_bytes = flood.size() / kFlood;
  put(flood);
  Status status = Status::kBlocked;
  while (status == Status::kBlocked) {
    const size_t before = unread_bytes();
    status = receive().status;
    EXPECT_LE(before - unread_bytes(), kRecordsPerCallMax * record_bytes);
    ASSERT_GT(before, unread_bytes());
  }
  EXPECT_EQ(status, Status::kWasted);
  EXPECT_GE(unread_bytes(), flood.size() - (kSilentRecordsMax + kRecordsPerCallMax) * record_bytes);
  EXPECT_LT(taken().size(), 100 * (kSilentRecordsMax + kRecordsPerCallMax));  // warnings alone
}

INSTANTIATE_TEST_SUITE_P(
    TlsCost, SilentRecords,
    testing::Values(std::pair<int, std::string>(SSL3_RT_APPLICATION_DATA, ""),
                    std::pair<int, std::string>(SSL3_RT_HANDSHAKE, std::string("\x01\0\0\0", 4))));

TEST_F(TlsCost, of_tls_1_2_there_is_forward_secrecy_and_authenticated_encryption_alone) {
  for (const char* ciphers : {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
                              "ECDHE-ECDSA-CHACHA20-POLY1305"}) {
    transport_ = identity_->make_transport(far_.number());
    TlsClient client(TLS1_2_VERSION, ciphers);
    EXPECT_EQ(shake_hands(client), Status::kDone) << ciphers;
    EXPECT_FALSE(SSL_SESSION_has_ticket(SSL_get_session(client.session()))) << ciphers;
  }
}

class RefusedCiphers : public TlsCost, public testing::WithParamInterface<const char*> {};

TEST_P(RefusedCiphers, are_refused) {
  TlsClient client(TLS1_2_VERSION, GetParam());
  EXPECT_EQ(shake_hands(client), Status::kFailed);
}

INSTANTIATE_TEST_SUITE_P(TlsCost, RefusedCiphers,
                         testing::Values("ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA384",
                                         "AES128-GCM-SHA256", "AES128-SHA",
                                         "ECDHE-ECDSA-AES128-CCM"));

// Beside a client that floods and some that never finish their handshake, another is served.
TEST_F(TlsCost, others_are_served) {
  TestServer server({}, [&](HttpOptions& options) {
    options.tls_certificate = files_.certificate;
    options.tls_key = files_.key;
  });
  std::vector<std::unique_ptr<RawClient>> unfinished;
  for (int count = 0; count < 100; ++count) {
    TlsClient hello(TLS1_3_VERSION);
    unfinished.push_back(std::make_unique<RawClient>(server.port()));
    unfinished.back()->send(hello.step("").substr(0, 50));
  }
  EXPECT_EQ(server.cuts(HttpCut::kRecords), 0U);
  const auto talk = [&](const std::string& sent, bool floods) {
    TlsClient client(TLS1_3_VERSION);
    Descriptor socket = connect_to(server.port());
    std::string next = client.step("");
    std::string received(1 << 16, '\0');
    while (!client.is_done()) {
      ::send(socket.number(), next.data(), next.size(), MSG_NOSIGNAL);
      const ssize_t count = recv(socket.number(), received.data(), received.size(), 0);
      if (count <= 0) return std::string();
      next = client.step(std::string_view(received).substr(0, static_cast<size_t>(count)));
    }
    for (size_t count = 0; floods && count < kFlood; ++count) next += client.key_update();
    next += client.encrypted(sent);
    ::send(socket.number(), next.data(), next.size(), MSG_NOSIGNAL);
    std::string text(1 << 12, '\0');
    for (;;) {
      const int read = SSL_read(client.session(), text.data(), static_cast<int>(text.size()));
      if (read > 0) return text.substr(0, static_cast<size_t>(read));
      const ssize_t count = recv(socket.number(), received.data(), received.size(), 0);
      if (count <= 0) return std::string();
      client.step(std::string_view(received).substr(0, static_cast<size_t>(count)));
    }
  };
  EXPECT_EQ(talk(request_text("GET", "/hello"), true), "");
  EXPECT_EQ(server.cuts(HttpCut::kRecords), 1U);
  EXPECT_NE(talk(request_text("GET", "/hello"), false).find("200 OK"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
