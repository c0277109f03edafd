#include "engine/base/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "engine/base/check.h"

namespace lockstep {

struct Digest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest() : state_(std::make_unique<State>()) {
  CHECK(
      state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
      "libcrypto has no SHA-256");
}

Digest::~Digest() = default;

void Digest::add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1,
        "libcrypto could not add {} bytes to a digest", bytes.size());
}

void Digest::add(std::string_view text) {
  add(std::as_bytes(std::span(text)));
}

std::string Digest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes = {};
  unsigned count = 0;
  CHECK(EVP_DigestFinal_ex(state_->context, bytes.data(), &count) == 1,
        "libcrypto could not end a digest");
  std::string text;
  for (unsigned index = 0; index < count; ++index) text += fmt::format("{:02x}", bytes[index]);
  return text;
}

}  // namespace lockstep
