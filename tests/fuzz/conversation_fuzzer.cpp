// Any bytes as a file of a saved conversation, with the digest that makes them whole. What is taken
// is what is written again; what is refused says why in a line of bounded length.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/digest.h"
#include "server/api/common/conversations.h"

namespace lockstep {
namespace {

constexpr std::string_view kModel = "m";
constexpr size_t kMessageBytesMax = 1000;

void read_conversation(const std::string& bytes) {
  const auto conversation = parse_conversation(bytes, kModel);
  if (conversation) {
    CHECK(!conversation->tokens.empty(), "no tokens");
    CHECK(conversation_bytes(*conversation, kModel) == bytes, "other bytes");
    return;
  }
  const Error& error = conversation.error();
  CHECK(error.kind == ErrorKind::kInvalidInput, "{}", error.message);
  CHECK(!error.message.empty() && error.message.size() <= kMessageBytesMax, "{} bytes",
        error.message.size());
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  lockstep::read_conversation(bytes);
  lockstep::Digest digest;
  digest.add(bytes);
  lockstep::read_conversation(bytes + digest.finish());
  return 0;
}
