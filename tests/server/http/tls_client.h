// A TLS client over memory, so that tests can send its records one by one or all at once.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

struct TlsFiles {
  std::string certificate;
  std::string key;
};

// A certificate signed by itself and its key (P-256), in files that only the owner may read.
TlsFiles make_tls_files(const std::string& folder);

class TlsClient {
 public:
  // `version`: TLS1_2_VERSION or TLS1_3_VERSION. `ciphers`: of TLS 1.2; "": all.
  explicit TlsClient(int version, const char* ciphers = "");

  // One step: takes what the server has sent, and gives what is to be sent. `is_done`: the
  // handshake is complete; `has_failed`: it cannot be.
  std::string step(std::string_view received);
  bool is_done() const { return is_done_; }
  bool has_failed() const { return has_failed_; }

  std::string encrypted(std::string_view bytes);
  std::string key_update();  // one record
  // One record of this type and text, which OpenSSL would not send: of a complete handshake of TLS
  // 1.2 with AES128-GCM-SHA256 (RFC 5246 section 6.3, RFC 5288), after which nothing was encrypted.
  std::string raw_record(uint8_t type, std::string_view text);
  SSL* session() { return session_.get(); }

 private:
  std::string pending();

  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> session_;
  BIO* in_;
  BIO* out_;
  bool is_done_ = false;
  bool has_failed_ = false;
  uint64_t next_raw_ = 1;  // its number; "finished" had the first
};

}  // namespace lockstep
