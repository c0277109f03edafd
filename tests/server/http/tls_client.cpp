#include "tests/server/http/tls_client.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>

#include "engine/base/check.h"

namespace lockstep {

TlsFiles make_tls_files(const std::string& folder) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 24L * 60 * 60);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const TlsFiles files = {folder + "/certificate.pem", folder + "/key.pem"};
  const auto write = [](const std::string& path, const auto& put) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    CHECK(file != nullptr, "cannot write {}", path);
    put(file);
    std::fclose(file);
    chmod(path.c_str(), 0600);
  };
  write(files.certificate, [&](std::FILE* file) { PEM_write_X509(file, certificate.get()); });
  write(files.key, [&](std::FILE* file) {
    PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return files;
}

TlsClient::TlsClient(int version, const char* ciphers)
    : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free),
      session_(nullptr, SSL_free),
      in_(BIO_new(BIO_s_mem())),
      out_(BIO_new(BIO_s_mem())) {
  SSL_CTX_set_min_proto_version(context_.get(), version);
  SSL_CTX_set_max_proto_version(context_.get(), version);
  SSL_CTX_set_security_level(context_.get(), 0);
  if (*ciphers != '\0') {
    CHECK(SSL_CTX_set_cipher_list(context_.get(), ciphers) == 1, "ciphers {}", ciphers);
  }
  session_.reset(SSL_new(context_.get()));
  SSL_set_bio(session_.get(), in_, out_);
  SSL_set_connect_state(session_.get());
}

std::string TlsClient::pending() {
  std::string bytes(BIO_ctrl_pending(out_), '\0');
  if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

std::string TlsClient::step(std::string_view received) {
  if (!received.empty()) BIO_write(in_, received.data(), static_cast<int>(received.size()));
  if (!is_done_) {
    const int result = SSL_do_handshake(session_.get());
    is_done_ = result == 1;
    has_failed_ = !is_done_ && SSL_get_error(session_.get(), result) != SSL_ERROR_WANT_READ;
  }
  if (is_done_) {  // tickets come behind the handshake
    char byte = 0;
    SSL_peek(session_.get(), &byte, 1);
  }
  return pending();
}

std::string TlsClient::encrypted(std::string_view bytes) {
  SSL_write(session_.get(), bytes.data(), static_cast<int>(bytes.size()));
  return pending();
}

std::string TlsClient::key_update() {
  SSL_key_update(session_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  SSL_do_handshake(session_.get());
  return pending();
}

}  // namespace lockstep
