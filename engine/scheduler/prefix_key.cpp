#include "engine/scheduler/prefix_key.h"

#include <cstring>
#include <vector>

namespace lockstep {
namespace {

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

PrefixKey root_key(const HashSecret& secret, std::string_view tenant, std::string_view salt) {
  Message message(Field::kRoot);
  message.add(tenant.data(), tenant.size());
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
