#include "tests/server/http/tls_client.h"

#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>

#include "engine/base/check.h"

namespace lockstep {
namespace {

using Keys = std::array<unsigned char, 40>;  // two keys of 16 bytes, the client's first; two salts

Keys key_block(const SSL* session) {
  std::array<unsigned char, SSL3_RANDOM_SIZE> client{};
  std::array<unsigned char, SSL3_RANDOM_SIZE> server{};
  std::array<unsigned char, SSL_MAX_MASTER_KEY_LENGTH> secret{};
  SSL_get_client_random(session, client.data(), client.size());
  SSL_get_server_random(session, server.data(), server.size());
  const size_t size =
      SSL_SESSION_get_master_key(SSL_get0_session(session), secret.data(), secret.size());
  std::string label = "key expansion";
  std::string digest = "SHA256";
  // The seeds are joined.
  std::array<OSSL_PARAM, 6> parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SECRET, secret.data(), size),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, label.data(), label.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, server.data(), server.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, client.data(), client.size()),
      OSSL_PARAM_construct_end()};
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> function(
      EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_TLS1_PRF, nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> derivation(
      EVP_KDF_CTX_new(function.get()), EVP_KDF_CTX_free);
  Keys keys{};
  CHECK(EVP_KDF_derive(derivation.get(), keys.data(), keys.size(), parameters.data()) == 1,
        "EVP_KDF_derive of {} bytes", keys.size());
  return keys;
}

}  // namespace

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

std::string TlsClient::raw_record(uint8_t type, std::string_view text) {
  constexpr size_t kKeyBytes = 16;
  constexpr size_t kSaltBytes = 4;
  constexpr size_t kTagBytes = 16;
  const Keys keys = key_block(session_.get());
  const auto big_endian = [](uint64_t value, int bytes) {
    std::string made;
    for (int byte = bytes - 1; byte >= 0; --byte) made += static_cast<char>(value >> (8 * byte));
    return made;
  };
  const std::string number = big_endian(next_raw_++, 8);
  const std::string kind = {static_cast<char>(type), '\x03', '\x03'};
  std::string header = number;
  header += kind;
  header += big_endian(text.size(), 2);
  std::string nonce(keys.begin() + 2 * kKeyBytes, keys.begin() + 2 * kKeyBytes + kSaltBytes);
  nonce += number;
  std::string sealed(text.size() + kTagBytes, '\0');
  const auto bytes = [](const std::string& given) {
    return reinterpret_cast<const unsigned char*>(given.data());
  };
  auto* const out = reinterpret_cast<unsigned char*>(sealed.data());
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> cipher(EVP_CIPHER_CTX_new(),
                                                                               EVP_CIPHER_CTX_free);
  int count = 0;
  EVP_EncryptInit_ex(cipher.get(), EVP_aes_128_gcm(), nullptr, keys.data(), bytes(nonce));
  EVP_EncryptUpdate(cipher.get(), nullptr, &count, bytes(header), static_cast<int>(header.size()));
  if (!text.empty()) {
    EVP_EncryptUpdate(cipher.get(), out, &count,
                      reinterpret_cast<const unsigned char*>(text.data()),
                      static_cast<int>(text.size()));
  }
  EVP_EncryptFinal_ex(cipher.get(), out + text.size(), &count);
  EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(kTagBytes),
                      out + text.size());
  std::string record = kind;
  record += big_endian(number.size() + sealed.size(), 2);
  record += number;
  record += sealed;
  return record;
}

}  // namespace lockstep
