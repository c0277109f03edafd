// Keyed digests by libcrypto: names that cannot be foreseen without the key, and tags that show
// whether bytes are those that were written.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace lockstep {

using SecretKey = std::array<std::byte, 32>;

// From the system's source of randomness.
void fill_random(std::span<std::byte> bytes);

// HMAC-SHA-256 (RFC 2104). What is derived from one key by two messages tells nothing of the other.
SecretKey derive_key(const SecretKey& key, std::string_view message);

// GMAC over AES-256 (NIST SP 800-38D): as fast as memory on processors with carry-less products.
// A nonce is used once with a key; random ones may be, for some billions of tags.
class AuthenticationTag {
 public:
  using Nonce = std::array<std::byte, 12>;
  using Tag = std::array<std::byte, 16>;

  AuthenticationTag(const SecretKey& key, const Nonce& nonce);
  ~AuthenticationTag();
  AuthenticationTag(const AuthenticationTag&) = delete;
  AuthenticationTag& operator=(const AuthenticationTag&) = delete;

  void add(std::span<const std::byte> bytes);
  // Called once, after the last add().
  Tag finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
