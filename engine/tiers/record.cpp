#include "engine/tiers/record.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace lockstep {
namespace {

// Raised when records are written otherwise: then the others are of no use.
constexpr std::array<char, 8> kMagic = {'L', 'S', 'K', 'V', 'P', '0', '0', '1'};
// The kernel takes no more in one call.
constexpr size_t kVectorsMost = 64;

// As it lies in the file, which no other machine reads.
struct Header {
  std::array<char, 8> magic = kMagic;
  uint64_t prefix_low = 0;
  uint64_t prefix_high = 0;
  uint64_t group = 0;
  uint64_t part_count = 0;
  uint64_t payload_bytes = 0;
  AuthenticationTag::Nonce nonce = {};
  uint32_t kind = 0;
  AuthenticationTag::Tag tag = {};
};
static_assert(std::has_unique_object_representations_v<Header>);

struct alignas(kRecordBlockBytes) HeaderBlock {
  std::array<std::byte, kRecordBlockBytes> bytes = {};

  HeaderBlock() = default;
  explicit HeaderBlock(const Header& header) { std::memcpy(bytes.data(), &header, sizeof header); }
  Header header() const {
    Header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    return header;
  }
};

Header make_header(const StoredKey& key, RecordParts parts) {
  Header header;
  header.prefix_low = key.prefix.low;
  header.prefix_high = key.prefix.high;
  header.group = key.group;
  header.kind = static_cast<uint32_t>(key.kind);
  header.part_count = parts.size();
  header.payload_bytes = record_bytes(parts) - kRecordBlockBytes;
  return header;
}

AuthenticationTag::Tag tag_of(const SecretKey& secret, Header header, RecordParts parts) {
  header.tag = {};
  AuthenticationTag tag(secret, header.nonce);
  tag.add(std::as_bytes(std::span(&header, 1)));
  for (const std::span<std::byte> part : parts) {
    if (!part.empty()) tag.add(part);
  }
  return tag.finish();
}

std::vector<iovec> pieces_of(HeaderBlock& block, RecordParts parts) {
  std::vector<iovec> pieces = {{block.bytes.data(), block.bytes.size()}};
  for (const std::span<std::byte> part : parts) pieces.push_back({part.data(), part.size()});
  return pieces;
}

// All of the pieces by calls of `transfer`; how many bytes, or the negative error's number.
template <typename Transfer>
ssize_t transfer_all(std::span<iovec> pieces, const Transfer& transfer) {
  ssize_t done = 0;
  while (!pieces.empty()) {
    const size_t count = std::min(pieces.size(), kVectorsMost);
    const ssize_t moved = transfer(pieces.data(), static_cast<int>(count), done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return -errno;
    if (moved == 0) break;
    done += moved;
    auto rest = static_cast<size_t>(moved);
    while (!pieces.empty() && rest >= pieces.front().iov_len) {
      rest -= pieces.front().iov_len;
      pieces = pieces.subspan(1);
    }
    if (rest == 0) continue;
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + rest;
    pieces.front().iov_len -= rest;
  }
  return done;
}

}  // namespace

uint64_t record_bytes(RecordParts parts) {
  uint64_t bytes = kRecordBlockBytes;
  for (const std::span<std::byte> part : parts) bytes += part.size();
  return bytes;
}

Result<void> write_record(int descriptor, const SecretKey& secret, const StoredKey& key,
                          RecordParts parts, int& error_number) {
  Header header = make_header(key, parts);
  fill_random(header.nonce);
  header.tag = tag_of(secret, header, parts);
  HeaderBlock block(header);
  std::vector<iovec> pieces = pieces_of(block, parts);
  const ssize_t written = transfer_all(pieces, [&](const iovec* from, int count, off_t offset) {
    return ::pwritev(descriptor, from, count, offset);
  });
  if (written == static_cast<ssize_t>(record_bytes(parts))) return {};
  error_number = written < 0 ? static_cast<int>(-written) : ENOSPC;
  return machine_refused("{}", std::strerror(error_number));
}

Result<void> read_record(int descriptor, const SecretKey& secret, const StoredKey& key,
                         RecordParts parts) {
  HeaderBlock block;
  std::vector<iovec> pieces = pieces_of(block, parts);
  const ssize_t read = transfer_all(pieces, [&](const iovec* to, int count, off_t offset) {
    return ::preadv(descriptor, to, count, offset);
  });
  if (read < 0) return machine_refused("{}", std::strerror(static_cast<int>(-read)));
  if (read != static_cast<ssize_t>(record_bytes(parts))) {
    return machine_refused("it ends after {} bytes of {}", read, record_bytes(parts));
  }
  Header expected = make_header(key, parts);
  expected.nonce = block.header().nonce;
  expected.tag = tag_of(secret, expected, parts);
  if (block.bytes != HeaderBlock(expected).bytes)
    return machine_refused("its checksum is not that of what it should hold");
  return {};
}

}  // namespace lockstep
