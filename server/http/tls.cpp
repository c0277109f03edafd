#include "server/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <array>
#include <climits>
#include <cstdint>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/key_file.h"
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

// Chooses HTTP/1.1 of the protocols that the client names; none of the others is spoken here.
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

// The records that a client may have sent without a byte of a request: after the handshake these
// are new keys, empty records, alerts and, with TLS 1.2, requests for a new handshake. Browsers and
// HTTP libraries send none of them, or one key update in gigabytes.
constexpr uint64_t kSilentRecordsMax = 16;
constexpr uint64_t kBytesPerSilentRecord = 64 * 1024;  // of requests: one more is allowed
// The records of a whole handshake: a client needs three or four, and more where it sends its first
// message in pieces.
constexpr uint64_t kHandshakeRecordsMax = 64;
// OpenSSL goes on by itself after some records, as long as more of them lie in the socket: after so
// many in one turn the socket says that there is nothing more.
constexpr uint64_t kRecordsPerTurn = 8;

class TlsTransport final : public Transport {
 public:
  // Takes the session and the socket's BIO over.
  TlsTransport(SSL* session, BIO* socket, int descriptor)
      : session_(session), descriptor_(descriptor) {
    BIO_set_callback_ex(socket, before_socket);
    BIO_set_callback_arg(socket, reinterpret_cast<char*>(this));
    SSL_set_bio(session_, socket, socket);
    SSL_set_msg_callback(session_, count_record);
    SSL_set_msg_callback_arg(session_, this);
    SSL_set_accept_state(session_);
  }
  ~TlsTransport() override { SSL_free(session_); }
  TlsTransport(const TlsTransport&) = delete;
  TlsTransport& operator=(const TlsTransport&) = delete;

  bool needs_handshake() const override { return true; }

  Outcome handshake() override {
    begin_turn();
    const int result = SSL_do_handshake(session_);
    if (result == 1) {
      is_established_ = true;
      silent_records_ = 0;
      return {};
    }
    const Outcome outcome = outcome_of(result);
    if (outcome.status == Status::kFailed) {
      const int reason = ERR_GET_REASON(ERR_peek_error());
      is_plain_client_ = reason == SSL_R_HTTP_REQUEST;
      spdlog::debug("A TLS handshake failed: {}", openssl_reason());
    }
    return silent_records_ > kHandshakeRecordsMax ? Outcome{Status::kWasted} : outcome;
  }

  std::string_view hint_to_client() const override {
    return is_plain_client_ ? kPlainClientHint : "";
  }

  Outcome receive(char* bytes, size_t size) override {
    begin_turn();
    size_t count = 0;
    const int result = SSL_read_ex(session_, bytes, size, &count);
    if (result == 1) {
      if (silent_records_ > 0) --silent_records_;  // the one that these are from
      received_bytes_ += count;
    }
    if (silent_records_ > kSilentRecordsMax + received_bytes_ / kBytesPerSilentRecord) {
      spdlog::debug("A TLS client has sent {} records without a byte", silent_records_);
      has_failed_ = true;
      return {Status::kWasted};
    }
    if (result == 1) return {Status::kDone, count};
    const Outcome outcome = outcome_of(result);
    // Reading that must write first is a peer that asks for new keys and takes no answer.
    if (outcome.status == Status::kBlocked && outcome.wants_write) return {Status::kFailed};
    return outcome;
  }

  Outcome send(const char* bytes, size_t size) override {
    begin_turn();
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
    shutdown(descriptor_, SHUT_WR);
  }

 private:
  void begin_turn() {
    ERR_clear_error();
    records_in_turn_ = 0;
  }

  // Called with each record's header as it comes, and with much else.
  static void count_record(int is_written, int, int type, const void*, size_t, SSL*, void* self) {
    if (is_written != 0 || type != SSL3_RT_HEADER) return;
    auto& transport = *static_cast<TlsTransport*>(self);
    ++transport.records_in_turn_;
    ++transport.silent_records_;
  }

  // Before the socket is read: nothing is there (for now) once the turn is over.
  static long before_socket(BIO* socket, int operation, const char*, size_t, int, long, int result,
                            size_t*) {
    if (operation != BIO_CB_READ) return result;
    const auto& transport = *reinterpret_cast<const TlsTransport*>(BIO_get_callback_arg(socket));
    if (!transport.is_turn_over()) return result;
    BIO_set_retry_read(socket);
    return -1;
  }

  bool is_turn_over() const {
    return records_in_turn_ >= kRecordsPerTurn ||
           (!is_established_ && silent_records_ > kHandshakeRecordsMax);
  }

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
  const int descriptor_;
  uint64_t records_in_turn_ = 0;  // received
  uint64_t silent_records_ = 0;   // since the handshake, without a byte of a request; or its own
  uint64_t received_bytes_ = 0;
  bool is_established_ = false;
  bool is_plain_client_ = false;
  bool has_failed_ = false;
};

// Whether a client that says hello knows TLS 1.3.
bool offers_tls13(SSL* session) {
  const unsigned char* list = nullptr;
  size_t size = 0;
  if (SSL_client_hello_get0_ext(session, TLSEXT_TYPE_supported_versions, &list, &size) != 1) {
    return false;
  }
  for (size_t offset = 1; offset + 1 < size; offset += 2) {  // behind the list's own size
    if (list[offset] == (TLS1_3_VERSION >> 8) && list[offset + 1] == (TLS1_3_VERSION & 0xFF)) {
      return true;
    }
  }
  return false;
}

// A ticket of TLS 1.2 holds the session's secret itself, for as long as the ticket's key lives:
// that would take its forward secrecy. With TLS 1.3 new secrets are agreed on beside the ticket.
int no_tickets_of_old(SSL* session, int*, void*) {
  if (!offers_tls13(session)) SSL_set_options(session, SSL_OP_NO_TICKET);
  return SSL_CLIENT_HELLO_SUCCESS;
}

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
    const MutexLock lock(mutex_);
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
  // On by default: a read would go on over records without a byte until the socket is empty.
  SSL_CTX_clear_mode(context.get(), SSL_MODE_AUTO_RETRY);
  // TLS 1.2 with forward secrecy and authenticated encryption alone. TLS 1.3 has nothing else.
  CHECK(SSL_CTX_set_cipher_list(context.get(), "ECDHE+AESGCM:ECDHE+CHACHA20") == 1,
        "SSL_CTX_set_cipher_list: {}", openssl_reason());
  SSL_CTX_set_client_hello_cb(context.get(), no_tickets_of_old, nullptr);
  // Tickets resume sessions without memory here.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 1);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  SSL_CTX_set_default_passwd_cb(context.get(), no_passphrase);

  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_.c_str()) != 1) {
    return invalid_input("cannot use {} as --tls-certificate, a chain of certificates in PEM: {}",
                         certificate_, openssl_reason());
  }
  if (auto checked = check_key_file(key_, "--tls-key"); !checked) {
    return std::unexpected(std::move(checked.error()));
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
  const auto free_session = [](SSL* session) { SSL_free(session); };
  const auto free_bio = [](BIO* bio) { BIO_free(bio); };
  std::unique_ptr<BIO, decltype(free_bio)> bio(BIO_new_socket(socket, BIO_NOCLOSE));
  const MutexLock lock(mutex_);
  // Takes a reference to the context.
  std::unique_ptr<SSL, decltype(free_session)> session(SSL_new(context_.get()));
  if (session == nullptr || bio == nullptr) {
    spdlog::warn("A connection is refused: no memory for TLS: {}", openssl_reason());
    return nullptr;
  }
  auto transport = std::make_unique<TlsTransport>(session.get(), bio.get(), socket);
  static_cast<void>(session.release());
  static_cast<void>(bio.release());
  return transport;
}

}  // namespace lockstep
