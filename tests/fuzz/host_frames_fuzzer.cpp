// Any bytes as what another host sends: as frames, and as the payload of each kind. What is taken
// has the bounds that its reader relies on, and says the same when it is sent on.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/check.h"
#include "engine/hosts/frames.h"

namespace lockstep {
namespace {

using Payload = std::span<const std::byte>;

template <typename Message>
void check_same(const Message& message, Payload payload) {
  std::vector<std::byte> frame;
  append_frame(message, frame);
  const auto decoded = decode_frame(frame);
  CHECK(decoded, "a frame that was written is none: {}", decoded.error().message);
  CHECK(decoded->payload.size() == payload.size(), "{} bytes were {}", decoded->payload.size(),
        payload.size());
}

void read_payload(Payload payload) {
  if (const auto hello = decode_hello(payload); hello && hello->protocol == kHostProtocol) {
    check_same(*hello, payload);
  }
  if (const auto hello = decode_link_hello(payload); hello && hello->protocol == kHostProtocol) {
    check_same(*hello, payload);
  }
  if (const auto welcome = decode_welcome(payload)) {
    CHECK(welcome->addresses.size() <= kMostHosts, "{} hosts", welcome->addresses.size());
    check_same(*welcome, payload);
  }
  if (const auto document = decode_document(payload);
      document && document->text.size() <= kDocumentBytesMost) {
    check_same(*document, payload);
  }
  for (const std::string& text : {decode_failure(payload).message, decode_text(payload)}) {
    CHECK(text.find('\n') == std::string::npos, "a line of the log is broken: {}", text);
  }
}

void read(Payload bytes) {
  read_payload(bytes);
  while (const auto frame = decode_frame(bytes)) {
    CHECK(frame->payload.size() <= kCommandBytesMost, "{} bytes", frame->payload.size());
    read_payload(frame->payload);
    bytes = bytes.subspan(kFrameHeadBytes + frame->payload.size());
  }
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::read(std::as_bytes(std::span(data, size)));
  return 0;
}
