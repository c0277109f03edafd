#include "engine/scheduler/prefix_key.h"

#include <bit>
#include <cstring>
#include <vector>

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

// SipHash's state.
struct State {
  uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (int round = 0; round < count; ++round) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  uint64_t digest() {
    rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

enum class Field : uint8_t { kRoot = 1, kPage = 2 };

class Message {
 public:
  explicit Message(Field field) { bytes_.push_back(static_cast<std::byte>(field)); }

  void add(const void* data, size_t size) {
    const uint64_t length = size;
    append(&length, sizeof length);
    append(data, size);
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void append(const void* data, size_t size) {
    const size_t end = bytes_.size();
    bytes_.resize(end + size);
    if (size > 0) std::memcpy(bytes_.data() + end, data, size);
  }

  std::vector<std::byte> bytes_;
};

}  // namespace

Hash128 siphash_128(const HashSecret& secret, std::span<const std::byte> message) {
  State state{secret[0] ^ 0x736f6d6570736575U, secret[1] ^ 0x646f72616e646f6dU ^ 0xeeU,
              secret[0] ^ 0x6c7967656e657261U, secret[1] ^ 0x7465646279746573U};
  uint64_t last = uint64_t{message.size()} << 56U;
  while (message.size() >= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, message.data(), sizeof word);
    state.absorb(word);
    message = message.subspan(sizeof word);
  }
  uint64_t rest = 0;
  if (!message.empty()) std::memcpy(&rest, message.data(), message.size());
  state.absorb(last | rest);
  state.v2 ^= 0xeeU;
  Hash128 hash;
  hash.low = state.digest();
  state.v1 ^= 0xddU;
  hash.high = state.digest();
  return hash;
}

PrefixKey root_key(const HashSecret& secret, std::string_view owner, std::string_view salt) {
  Message message(Field::kRoot);
  message.add(owner.data(), owner.size());
  message.add(salt.data(), salt.size());
  return siphash_128(secret, message.bytes());
}

PrefixKey next_key(const HashSecret& secret, const PrefixKey& before,
                   std::span<const int32_t> page_tokens) {
  Message message(Field::kPage);
  message.add(&before, sizeof before);
  message.add(page_tokens.data(), page_tokens.size_bytes());
  return siphash_128(secret, message.bytes());
}

}  // namespace lockstep
