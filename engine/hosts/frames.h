// The frames that hosts of a group send one another: a head of 8 bytes and a payload whose length
// has a bound for each kind. Numbers are little-endian. What the other side sent is trusted for
// nothing: the decoding functions take any bytes, and fail with kInvalidInput.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace lockstep {

// Changes with what frames say. Heads, refusals and the first four bytes of hellos stay as they
// are: by them a host tells one of another version why it is refused.
inline constexpr uint32_t kHostProtocol = 8;

inline constexpr size_t kMostHosts = 256;
inline constexpr size_t kGroupBytesMost = 256;  // of a group's name
inline constexpr size_t kDocumentBytesMost = size_t{1} << 20U;
inline constexpr size_t kCommandBytesMost = size_t{1} << 30U;
// Until the hosts know how long commands get.
inline constexpr size_t kFirstCommandBytesMost = size_t{16} << 20U;

enum class FrameKind : uint8_t {
  kHello = 1,      // a follower's first, to the leader
  kRefusal = 2,    // why a connection is not wanted; nothing follows
  kWelcome = 3,    // leader: the group is complete
  kLinkHello = 4,  // the first of a connection that becomes a link
  kLinkWelcome = 5,
  kPing = 6,      // the sender lives
  kDocument = 7,  // of a host, to the leader and from it to all others
  kCommand = 8,   // leader to followers
  kFailure = 9,   // why the group has failed
  kGoodbye = 10,  // the sender leaves
  kMissing = 11,  // leader, before the welcome: the hosts that are not there yet, in words
};

inline constexpr size_t kFrameHeadBytes = 8;

struct FrameHead {
  FrameKind kind = FrameKind::kPing;
  size_t payload_bytes = 0;
};

// A frame whose payload lies elsewhere.
struct Frame {
  FrameKind kind = FrameKind::kPing;
  std::span<const std::byte> payload;
};

// A number by which one run of a program, or one group, is told from all others.
using HostNonce = std::array<std::byte, 16>;
HostNonce random_nonce();

struct Hello {
  uint32_t protocol = kHostProtocol;  // if it is another, the other members are not known
  uint32_t index = 0;
  uint32_t count = 0;
  HostNonce run = {};         // of the host's program
  std::string version;        // of the host's program
  std::string listens_at;     // as the host was given it; empty: the leader sees where it is
  uint16_t listens_port = 0;  // at which it takes links
  std::string group;          // HostOptions::group
};

struct LinkHello {
  uint32_t protocol = kHostProtocol;  // as above
  HostNonce group = {};
  uint32_t from = 0;  // hosts
  uint32_t to = 0;
};

struct Welcome {
  HostNonce group = {};
  std::vector<std::string> addresses;  // of all hosts
};

struct HostDocument {
  uint32_t host = 0;
  std::string_view text;  // in the payload
};

// Appends a whole frame. Texts that are too long are cut; CHECKs other lengths.
void append_frame(FrameKind kind, std::span<const std::byte> payload, std::vector<std::byte>& to);
void append_text_frame(FrameKind kind, std::string_view text, std::vector<std::byte>& to);
void append_frame(const Hello& hello, std::vector<std::byte>& to);
void append_frame(const LinkHello& hello, std::vector<std::byte>& to);
void append_frame(const Welcome& welcome, std::vector<std::byte>& to);
void append_frame(const HostDocument& document, std::vector<std::byte>& to);
void append_failure(const Error& reason, std::vector<std::byte>& to);

// Fails for a kind that is none, and for a length beyond the kind's bound.
Result<FrameHead> decode_head(std::span<const std::byte, kFrameHeadBytes> bytes);
// The first frame of `bytes`, whole. Fails as decode_head(), and where it is not all there.
Result<Frame> decode_frame(std::span<const std::byte> bytes);

// These take payloads.
Result<Hello> decode_hello(std::span<const std::byte> payload);
Result<LinkHello> decode_link_hello(std::span<const std::byte> payload);
Result<Welcome> decode_welcome(std::span<const std::byte> payload);
Result<HostDocument> decode_document(std::span<const std::byte> payload);
// The reason that the payload tells. Any bytes are one.
Error decode_failure(std::span<const std::byte> payload);
// The text of a refusal or of missing hosts, or a part of a failure, without what would break a
// line of the log.
std::string decode_text(std::span<const std::byte> payload);

}  // namespace lockstep
