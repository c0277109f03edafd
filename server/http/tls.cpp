#include "server/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <array>
#include <climits>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr std::string_view kPlainClientHint =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    "Content-Length: 35\r\n\r\nthis port speaks TLS: use https://\n";

// OpenSSL would ask for the passphrase on the terminal.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

// Of the protocols that the client names, HTTP/1.1; none of the others is spoken here.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                    const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr std::array<unsigned char, 9> kHttp11 = {8,   'h', 't', 't', 'p',
                                                           '/', '1', '.', '1'};
  unsigned char* found = nullptr;
  const int status = SSL_select_next_proto(&found, chosen_size, kHttp11.data(), kHttp11.size(),
                                           offered, offered_size);
  *chosen = found;
  return status == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

class TlsTransport final : public Transport {
 public:
  TlsTransport(SSL* session, int socket) : session_(session), socket_(socket) {
    SSL_set_fd(session_, socket_);
    SSL_set_accept_state(session_);
  }
  ~TlsTransport() override { SSL_free(session_); }
  TlsTransport(const TlsTransport&) = delete;
  TlsTransport& operator=(const TlsTransport&) = delete;

  bool needs_handshake() const override { return true; }

  Outcome handshake() override {
    ERR_clear_error();
    const int result = SSL_do_handshake(session_);
    if (result == 1) {
      is_established_ = true;
      return {};
    }
    const Outcome outcome = outcome_of(result);
    if (outcome.status == Status::kFailed) {
      const int reason = ERR_GET_REASON(ERR_peek_error());
      is_plain_client_ = reason == SSL_R_HTTP_REQUEST;
      spdlog::debug("A TLS handshake failed: {}", openssl_reason());
    }
    return outcome;
  }

  std::string_view hint_to_client() const override {
    return is_plain_client_ ? kPlainClientHint : "";
  }

  Outcome receive(char* bytes, size_t size) override {
    ERR_clear_error();
    size_t count = 0;
    const int result = SSL_read_ex(session_, bytes, size, &count);
    if (result == 1) return {Status::kDone, count};
    const Outcome outcome = outcome_of(result);
    // Reading that must write first is a peer that asks for new keys and takes no answer.
    if (outcome.status == Status::kBlocked && outcome.wants_write) return {Status::kFailed};
    return outcome;
  }

  Outcome send(const char* bytes, size_t size) override {
    ERR_clear_error();
    size_t count = 0;
    const int result = SSL_write_ex(session_, bytes, size, &count);
    if (result == 1) return {Status::kDone, count};
    const Outcome outcome = outcome_of(result);
    // Renegotiation is off, so that writing never has to read.
    if (outcome.status == Status::kBlocked && !outcome.wants_write) return {Status::kFailed};
    return outcome;
  }

  void end_sending() override {
    ERR_clear_error();
    if (is_established_ && !has_failed_) SSL_shutdown(session_);
    ERR_clear_error();
    shutdown(socket_, SHUT_WR);
  }

 private:
  Outcome outcome_of(int result) {
    switch (SSL_get_error(session_, result)) {
      case SSL_ERROR_WANT_READ:
        return {Status::kBlocked, 0, false};
      case SSL_ERROR_WANT_WRITE:
        return {Status::kBlocked, 0, true};
      case SSL_ERROR_ZERO_RETURN:
        return {Status::kEnded};
      default:
        has_failed_ = true;
        return {Status::kFailed};
    }
  }

  SSL* const session_;
  const int socket_;
  bool is_established_ = false;
  bool is_plain_client_ = false;
  bool has_failed_ = false;
};

void warn_of_expiry(SSL_CTX* context, const std::string& file) {
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (certificate != nullptr && X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    spdlog::warn("The certificate in {} has expired", file);
  }
}

}  // namespace

std::string openssl_reason(const char* otherwise) {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_last_error();
  ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return code == 0 ? otherwise : text.data();
}

Result<std::unique_ptr<TlsIdentity>> TlsIdentity::load(std::string certificate, std::string key) {
  std::unique_ptr<TlsIdentity> identity(new TlsIdentity(std::move(certificate), std::move(key)));
  const auto read = identity->prepare_reload();
  if (!read) return std::unexpected(read.error());
  (*read)();
  return identity;
}

Result<std::function<void()>> TlsIdentity::prepare_reload() {
  auto fresh = read();
  if (!fresh) return std::unexpected(std::move(fresh.error()));
  return [this, context = std::move(*fresh)] {
    const std::lock_guard lock(mutex_);
    context_ = context;
  };
}

Result<TlsIdentity::Context> TlsIdentity::read() const {
  ERR_clear_error();
  const Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  CHECK(context != nullptr, "SSL_CTX_new: {}", openssl_reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE |
                                         SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  // Tickets resume sessions without memory here.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 1);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  SSL_CTX_set_default_passwd_cb(context.get(), no_passphrase);

  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_.c_str()) != 1) {
    return invalid_input("cannot use {} as --tls-certificate, a chain of certificates in PEM: {}",
                         certificate_, openssl_reason());
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_.c_str(), SSL_FILETYPE_PEM) != 1) {
    return invalid_input(
        "cannot use {} as --tls-key, the private key of the certificate in {}, in PEM and not "
        "encrypted: {}",
        key_, certificate_, openssl_reason());
  }
  if (SSL_CTX_check_private_key(context.get()) != 1) {
    return invalid_input("the key in {} is not that of the certificate in {}: {}", key_,
                         certificate_, openssl_reason());
  }
  warn_of_expiry(context.get(), certificate_);
  return context;
}

std::unique_ptr<Transport> TlsIdentity::make_transport(int socket) {
  const std::lock_guard lock(mutex_);
  SSL* session = SSL_new(context_.get());  // takes a reference to the context
  if (session == nullptr) {
    spdlog::warn("A connection is refused: no memory for TLS: {}", openssl_reason());
    return nullptr;
  }
  return std::make_unique<TlsTransport>(session, socket);
}

}  // namespace lockstep
