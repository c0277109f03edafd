#include "engine/base/secret.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// libcrypto takes an int; a multiple of the cipher's blocks.
constexpr size_t kPieceBytes = size_t{1} << 30U;

const unsigned char* bytes_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

void fill_random(std::span<std::byte> bytes) {
  CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()),
                   static_cast<int>(bytes.size())) == 1,
        "libcrypto gives no random bytes");
}

SecretKey derive_key(const SecretKey& key, std::string_view message) {
  SecretKey derived;
  unsigned count = 0;
  const auto text = std::as_bytes(std::span(message));
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(text), text.size(),
             reinterpret_cast<unsigned char*>(derived.data()), &count) != nullptr &&
            count == derived.size(),
        "libcrypto has no HMAC of SHA-256");
  return derived;
}

struct AuthenticationTag::State {
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  ~State() { EVP_CIPHER_CTX_free(context); }
};

AuthenticationTag::AuthenticationTag(const SecretKey& key, const Nonce& nonce)
    : state_(std::make_unique<State>()) {
  CHECK(
      state_->context != nullptr && EVP_EncryptInit_ex(state_->context, EVP_aes_256_gcm(), nullptr,
                                                       bytes_of(key), bytes_of(nonce)) == 1,
      "libcrypto has no AES-256-GCM");
}

AuthenticationTag::~AuthenticationTag() = default;

void AuthenticationTag::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    int count = 0;
    CHECK(EVP_EncryptUpdate(state_->context, nullptr, &count, bytes_of(piece),
                            static_cast<int>(piece.size())) == 1,
          "libcrypto could not add {} bytes to a tag", piece.size());
    bytes = bytes.subspan(piece.size());
  }
}

AuthenticationTag::Tag AuthenticationTag::finish() {
  Tag tag;
  int count = 0;
  std::array<unsigned char, 16> rest = {};
  CHECK(EVP_EncryptFinal_ex(state_->context, rest.data(), &count) == 1 &&
            EVP_CIPHER_CTX_ctrl(state_->context, EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()),
                                tag.data()) == 1,
        "libcrypto could not end a tag");
  return tag;
}

}  // namespace lockstep
