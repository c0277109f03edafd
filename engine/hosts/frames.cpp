#include "engine/hosts/frames.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/secret.h"

namespace lockstep {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they are");

constexpr std::array<std::byte, 3> kMark = {std::byte{'L'}, std::byte{'K'}, std::byte{'S'}};
constexpr size_t kTextBytesMost = 2048;    // of a reason, or a list of hosts
constexpr size_t kAddressBytesMost = 256;  // of "name:port"
constexpr size_t kVersionBytesMost = 64;

// The longest payload of each kind, by its number.
constexpr size_t kPayloadBytesMost[] = {
    0,  // none
    4 + 4 + 4 + sizeof(HostNonce) + 2 + kVersionBytesMost + 2 + kAddressBytesMost + 2 + 2 +
        kGroupBytesMost,                                         // kHello
    kTextBytesMost,                                              // kRefusal
    sizeof(HostNonce) + 4 + kMostHosts*(2 + kAddressBytesMost),  // kWelcome
    4 + sizeof(HostNonce) + 4 + 4,                               // kLinkHello
    0,                                                           // kLinkWelcome
    0,                                                           // kPing
    4 + kDocumentBytesMost,                                      // kDocument
    kCommandBytesMost,                                           // kCommand
    1 + kTextBytesMost,                                          // kFailure
    0,                                                           // kGoodbye
    kTextBytesMost,                                              // kMissing
};

// Appends values to a frame, whose head is completed in the end.
class FrameWriter {
 public:
  FrameWriter(FrameKind kind, std::vector<std::byte>& to)
      : kind_(kind), to_(to), begin_(to.size() + kFrameHeadBytes) {
    to_.resize(begin_);
  }
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;
  ~FrameWriter() {
    const auto length = static_cast<uint32_t>(to_.size() - begin_);
    CHECK(length <= kPayloadBytesMost[static_cast<size_t>(kind_)],
          "a frame of kind {} has {} bytes", static_cast<int>(kind_), length);
    std::byte* const head = to_.data() + begin_ - kFrameHeadBytes;
    std::memcpy(head, &length, sizeof(length));
    head[4] = static_cast<std::byte>(kind_);
    std::ranges::copy(kMark, head + 5);
  }

  void add(std::span<const std::byte> bytes) { to_.insert(to_.end(), bytes.begin(), bytes.end()); }
  template <typename Number>
  void add_number(Number number) {
    add(std::as_bytes(std::span(&number, 1)));
  }
  // The text alone, cut at `most`.
  void add_text(std::string_view text, size_t most) {
    add(std::as_bytes(std::span(text.substr(0, most))));
  }
  // The text behind its length.
  void add_string(std::string_view text, size_t most) {
    add_number(static_cast<uint16_t>(std::min(text.size(), most)));
    add_text(text, most);
  }

 private:
  FrameKind kind_;
  std::vector<std::byte>& to_;
  size_t begin_;  // of the payload
};

// Takes values from a payload. One that is not all there is empty, and so are all after it.
class PayloadReader {
 public:
  explicit PayloadReader(std::span<const std::byte> payload) : rest_(payload) {}

  std::span<const std::byte> take(size_t bytes) {
    if (bytes > rest_.size()) {
      is_short_ = true;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  template <typename Number>
  Number take_number() {
    Number number = {};
    const auto bytes = take(sizeof(number));
    if (!bytes.empty()) std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  std::string take_string(size_t most) {
    const size_t length = take_number<uint16_t>();
    if (length > most) is_short_ = true;
    return decode_text(take(length));
  }
  // Nothing was missing, and nothing is left.
  bool has_ended() const { return !is_short_ && rest_.empty(); }
  bool is_short() const { return is_short_; }

 private:
  std::span<const std::byte> rest_;
  bool is_short_ = false;
};

std::unexpected<Error> malformed(std::string_view what, size_t bytes) {
  return invalid_input("{} of {} bytes is not what it should be", what, bytes);
}

}  // namespace

HostNonce random_nonce() {
  HostNonce nonce;
  fill_random(nonce);
  return nonce;
}

void append_frame(FrameKind kind, std::span<const std::byte> payload, std::vector<std::byte>& to) {
  FrameWriter(kind, to).add(payload);
}

void append_text_frame(FrameKind kind, std::string_view text, std::vector<std::byte>& to) {
  FrameWriter(kind, to).add_text(text, kTextBytesMost);
}

void append_frame(const Hello& hello, std::vector<std::byte>& to) {
  FrameWriter writer(FrameKind::kHello, to);
  writer.add_number(hello.protocol);
  writer.add_number(hello.index);
  writer.add_number(hello.count);
  writer.add(hello.run);
  writer.add_string(hello.version, kVersionBytesMost);
  writer.add_string(hello.listens_at, kAddressBytesMost);
  writer.add_number(hello.listens_port);
  writer.add_string(hello.group, kGroupBytesMost);
}

void append_frame(const LinkHello& hello, std::vector<std::byte>& to) {
  FrameWriter writer(FrameKind::kLinkHello, to);
  writer.add_number(hello.protocol);
  writer.add(hello.group);
  writer.add_number(hello.from);
  writer.add_number(hello.to);
}

void append_frame(const Welcome& welcome, std::vector<std::byte>& to) {
  FrameWriter writer(FrameKind::kWelcome, to);
  writer.add(welcome.group);
  writer.add_number(static_cast<uint32_t>(welcome.addresses.size()));
  for (const std::string& address : welcome.addresses) {
    writer.add_string(address, kAddressBytesMost);
  }
}

void append_frame(const HostDocument& document, std::vector<std::byte>& to) {
  FrameWriter writer(FrameKind::kDocument, to);
  writer.add_number(document.host);
  writer.add_text(document.text, std::string_view::npos);
}

void append_failure(const Error& reason, std::vector<std::byte>& to) {
  FrameWriter writer(FrameKind::kFailure, to);
  writer.add_number(static_cast<uint8_t>(reason.kind));
  writer.add_text(reason.message, kTextBytesMost);
}

Result<FrameHead> decode_head(std::span<const std::byte, kFrameHeadBytes> bytes) {
  uint32_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const auto kind = static_cast<size_t>(bytes[4]);
  if (!std::ranges::equal(bytes.subspan<5>(), kMark)) {
    return invalid_input("what came is no frame of this protocol");
  }
  if (kind == 0 || kind >= std::size(kPayloadBytesMost)) {
    return invalid_input("a frame has kind {}, of which there is none", kind);
  }
  if (length > kPayloadBytesMost[kind]) {
    return invalid_input("a frame of kind {} has {} bytes, more than {}", kind, length,
                         kPayloadBytesMost[kind]);
  }
  return FrameHead{static_cast<FrameKind>(kind), length};
}

Result<Frame> decode_frame(std::span<const std::byte> bytes) {
  if (bytes.size() < kFrameHeadBytes) return malformed("a frame", bytes.size());
  const auto head = decode_head(bytes.first<kFrameHeadBytes>());
  if (!head) return std::unexpected(head.error());
  const auto rest = bytes.subspan(kFrameHeadBytes);
  if (rest.size() < head->payload_bytes) return malformed("a frame", bytes.size());
  return Frame{head->kind, rest.first(head->payload_bytes)};
}

Result<Hello> decode_hello(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  Hello hello;
  hello.protocol = reader.take_number<uint32_t>();
  if (reader.is_short()) return malformed("a hello", payload.size());
  if (hello.protocol != kHostProtocol) return hello;
  hello.index = reader.take_number<uint32_t>();
  hello.count = reader.take_number<uint32_t>();
  std::ranges::copy(reader.take(sizeof(HostNonce)), hello.run.begin());
  hello.version = reader.take_string(kVersionBytesMost);
  hello.listens_at = reader.take_string(kAddressBytesMost);
  hello.listens_port = reader.take_number<uint16_t>();
  hello.group = reader.take_string(kGroupBytesMost);
  if (!reader.has_ended()) return malformed("a hello", payload.size());
  return hello;
}

Result<LinkHello> decode_link_hello(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  LinkHello hello;
  hello.protocol = reader.take_number<uint32_t>();
  if (reader.is_short()) return malformed("a link's hello", payload.size());
  if (hello.protocol != kHostProtocol) return hello;
  std::ranges::copy(reader.take(sizeof(HostNonce)), hello.group.begin());
  hello.from = reader.take_number<uint32_t>();
  hello.to = reader.take_number<uint32_t>();
  if (!reader.has_ended()) return malformed("a link's hello", payload.size());
  return hello;
}

Result<Welcome> decode_welcome(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  Welcome welcome;
  std::ranges::copy(reader.take(sizeof(HostNonce)), welcome.group.begin());
  const auto count = reader.take_number<uint32_t>();
  if (count > kMostHosts) return malformed("a welcome", payload.size());
  for (uint32_t host = 0; host < count && !reader.is_short(); ++host) {
    welcome.addresses.push_back(reader.take_string(kAddressBytesMost));
  }
  if (!reader.has_ended()) return malformed("a welcome", payload.size());
  return welcome;
}

Result<HostDocument> decode_document(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  HostDocument document;
  document.host = reader.take_number<uint32_t>();
  if (reader.is_short()) return malformed("a document", payload.size());
  const auto text = payload.subspan(sizeof(document.host));
  document.text = {reinterpret_cast<const char*>(text.data()), text.size()};
  return document;
}

Error decode_failure(std::span<const std::byte> payload) {
  Error reason = {ErrorKind::kMachineRefused, "no reason was told"};
  if (payload.empty()) return reason;
  const auto kind = static_cast<size_t>(payload.front());
  if (kind <= static_cast<size_t>(ErrorKind::kUnavailable)) reason.kind = ErrorKind(kind);
  reason.message = decode_text(payload.subspan(1));
  return reason;
}

std::string decode_text(std::span<const std::byte> payload) {
  std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text;
}

}  // namespace lockstep
