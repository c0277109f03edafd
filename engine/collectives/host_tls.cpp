#include "engine/collectives/host_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace lockstep {
namespace {

constexpr std::string_view kIdentity = "lockstep hosts";
constexpr const char* kCipher = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kCipherNumber = {0x13, 0x01};
// Several records of 16 KiB by one recv().
constexpr size_t kReadBytes = size_t{128} << 10U;
constexpr size_t kMostBytes = size_t{1} << 30U;  // libssl takes an int

template <auto free>
struct Freed {
  template <typename Object>
  void operator()(Object* object) const {
    free(object);
  }
};

using ContextPointer = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using ConnectionPointer = std::unique_ptr<SSL, Freed<SSL_free>>;

std::string openssl_words() {
  const char* const words = ERR_reason_error_string(ERR_peek_error());
  return words == nullptr ? "no reason given" : words;
}

class TlsChannel : public HostChannel {
 public:
  TlsChannel(Descriptor socket, ConnectionPointer connection)
      : HostChannel(std::move(socket)), connection_(std::move(connection)) {}

  // libssl's way to the socket.
  bool attach(BIO_METHOD* method) {
    BIO* const way = BIO_new(method);
    if (way == nullptr) return false;
    BIO_set_data(way, this);
    BIO_set_init(way, 1);
    SSL_set_bio(connection_.get(), way, way);
    return true;
  }

  ChannelStep shake_hands() override {
    ERR_clear_error();
    const int outcome = SSL_do_handshake(connection_.get());
    if (outcome != 1) return stopped(outcome);
    // Only the pre-shared key shows who the other side is.
    if (SSL_session_reused(connection_.get()) == 1) return {.bytes = 1};
    reason_ = "it has connected without the secret";
    is_refused_ = true;
    return {};
  }

  ChannelStep send(std::span<const std::byte> bytes) override {
    ERR_clear_error();
    const int count = SSL_write(connection_.get(), bytes.data(), size_of(bytes.size()));
    return count > 0 ? ChannelStep{.bytes = static_cast<size_t>(count)} : stopped(count);
  }

  ChannelStep receive(std::span<std::byte> bytes) override {
    ERR_clear_error();
    const int count = SSL_read(connection_.get(), bytes.data(), size_of(bytes.size()));
    return count > 0 ? ChannelStep{.bytes = static_cast<size_t>(count)} : stopped(count);
  }

  ChannelStep look() override {
    ERR_clear_error();
    char one = 0;
    const int count = SSL_peek(connection_.get(), &one, 1);
    return count > 0 ? ChannelStep{.bytes = 1} : stopped(count);
  }

  std::string reason() const override { return reason_; }
  bool is_refused() const override { return is_refused_; }
  bool is_encrypted() const override { return true; }

  static int read_socket(BIO* way, char* into, int size) {
    auto& channel = *static_cast<TlsChannel*>(BIO_get_data(way));
    const ssize_t count =
        recv(channel.socket(), into, static_cast<size_t>(std::max(size, 0)), MSG_DONTWAIT);
    BIO_clear_retry_flags(way);
    if (count < 0 && channel.shall_retry()) BIO_set_retry_read(way);
    if (count == 0) channel.error_ = 0;
    if (count > 0) channel.received_bytes_ += static_cast<size_t>(count);
    return static_cast<int>(count);
  }

  static int write_socket(BIO* way, const char* from, int size) {
    auto& channel = *static_cast<TlsChannel*>(BIO_get_data(way));
    const ssize_t count = ::send(channel.socket(), from, static_cast<size_t>(std::max(size, 0)),
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    BIO_clear_retry_flags(way);
    if (count < 0 && channel.shall_retry()) BIO_set_retry_write(way);
    return static_cast<int>(count);
  }

  static long control_socket(BIO*, int command, long, void*) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

 private:
  static int size_of(size_t bytes) { return static_cast<int>(std::min(bytes, kMostBytes)); }

  bool shall_retry() {
    error_ = errno;
    return error_ == EAGAIN || error_ == EINTR;
  }

  ChannelStep stopped(int outcome) {
    const int error = SSL_get_error(connection_.get(), outcome);
    if (error == SSL_ERROR_WANT_READ) return {.events = POLLIN};
    if (error == SSL_ERROR_WANT_WRITE) return {.events = POLLOUT};
    const bool ended = error == SSL_ERROR_ZERO_RETURN || error == SSL_ERROR_SYSCALL ||
                       ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    is_refused_ = !ended;
    if (!ended) {
      reason_ = openssl_words();
    } else if (error == SSL_ERROR_SYSCALL && error_ != 0) {
      reason_ = std::strerror(error_);
    } else {
      reason_ = "it has closed the connection";
    }
    return {};
  }

  ConnectionPointer connection_;
  std::string reason_;
  bool is_refused_ = false;
  int error_ = 0;  // of the last call on the socket that failed; 0: the end of the stream
};

BIO_METHOD* make_socket_method() {
  BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "host");
  if (method == nullptr) return nullptr;
  BIO_meth_set_read(method, TlsChannel::read_socket);
  BIO_meth_set_write(method, TlsChannel::write_socket);
  BIO_meth_set_ctrl(method, TlsChannel::control_socket);
  return method;
}

// libssl's own way to a socket may raise SIGPIPE. There are only 128 numbers of such ways, so that
// the process has one, which connections use as long as they live.
BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = make_socket_method();
  return method;
}

class OpensslHostTls : public HostTls {
 public:
  explicit OpensslHostTls(const SecretKey& secret)
      : key_(derive_key(secret, "TLS between hosts")), context_(SSL_CTX_new(TLS_method())) {}

  Result<void> prepare() {
    SSL_CTX* const context = context_.get();
    if (context == nullptr || socket_method() == nullptr ||
        SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, kCipher) != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1) {
      return machine_refused("libssl has no TLS 1.3 with {}: {}", kCipher, openssl_words());
    }
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, kReadBytes);
    SSL_CTX_set_psk_use_session_callback(context, use_session);
    SSL_CTX_set_psk_find_session_callback(context, find_session);
    SSL_CTX_set_app_data(context, this);
    return {};
  }

  Result<std::unique_ptr<HostChannel>> accepting(Descriptor socket) override {
    return channel(std::move(socket), SSL_set_accept_state);
  }
  Result<std::unique_ptr<HostChannel>> connecting(Descriptor socket) override {
    return channel(std::move(socket), SSL_set_connect_state);
  }

 private:
  Result<std::unique_ptr<HostChannel>> channel(Descriptor socket, void (*set_role)(SSL*)) {
    ConnectionPointer connection(SSL_new(context_.get()));
    if (connection == nullptr) return machine_refused("libssl: {}", openssl_words());
    set_role(connection.get());
    // No certificate is known, so that none of the host that is connected to is believed.
    if (SSL_is_server(connection.get()) == 0) {
      SSL_set_verify(connection.get(), SSL_VERIFY_PEER, nullptr);
    }
    auto channel = std::make_unique<TlsChannel>(std::move(socket), std::move(connection));
    if (!channel->attach(socket_method())) return machine_refused("libssl: {}", openssl_words());
    return channel;
  }

  // Null where there is no memory.
  static SSL_SESSION* session(SSL* connection) {
    const auto& self =
        *static_cast<const OpensslHostTls*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(connection)));
    const SSL_CIPHER* const cipher = SSL_CIPHER_find(connection, kCipherNumber.data());
    std::unique_ptr<SSL_SESSION, Freed<SSL_SESSION_free>> made(SSL_SESSION_new());
    if (cipher == nullptr || made == nullptr ||
        SSL_SESSION_set1_master_key(made.get(),
                                    reinterpret_cast<const unsigned char*>(self.key_.data()),
                                    self.key_.size()) != 1 ||
        SSL_SESSION_set_cipher(made.get(), cipher) != 1 ||
        SSL_SESSION_set_protocol_version(made.get(), TLS1_3_VERSION) != 1) {
      return nullptr;
    }
    return made.release();
  }

  static int use_session(SSL* connection, const EVP_MD* digest, const unsigned char** identity,
                         size_t* identity_bytes, SSL_SESSION** offered) {
    *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
    *identity_bytes = kIdentity.size();
    *offered = nullptr;
    // With a digest: asked again, for a cipher that is not the key's.
    if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
    *offered = session(connection);
    return *offered == nullptr ? 0 : 1;
  }

  static int find_session(SSL* connection, const unsigned char* identity, size_t identity_bytes,
                          SSL_SESSION** found) {
    *found = nullptr;
    if (std::string_view(reinterpret_cast<const char*>(identity), identity_bytes) != kIdentity) {
      return 1;
    }
    *found = session(connection);
    return *found == nullptr ? 0 : 1;
  }

  const SecretKey key_;
  const ContextPointer context_;
};

}  // namespace

Result<std::unique_ptr<HostTls>> HostTls::create(const SecretKey& secret) {
  auto tls = std::make_unique<OpensslHostTls>(secret);
  if (auto prepared = tls->prepare(); !prepared) return std::unexpected(prepared.error());
  return tls;
}

}  // namespace lockstep
