#include "tests/emulators/gpu/cuda/fat_binary.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace lockstep::ptx {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;  // of fatbinary_section.h
constexpr uint32_t kMagic = 0xba55ed50;
constexpr uint16_t kPtxKind = 1;  // 2: machine code

// No document of NVIDIA's describes these two; read off what nvcc 13.0 writes.
struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t entries_bytes;
};
struct Entry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;      // what is compiled follows
  uint64_t bytes;             // of it, with padding
  uint32_t compressed_bytes;  // 0: it is not compressed
  uint32_t others[3];
  uint32_t architecture;  // 90: compute_90 or sm_90
};

constexpr uint32_t kArchitecture = 90;  // of emulated GPUs

template <typename T>
T read(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const std::byte* data;
};

}  // namespace

std::expected<std::string_view, std::string> find_ptx(const void* wrapper) {
  const auto outer = read<Wrapper>(static_cast<const std::byte*>(wrapper));
  if (outer.magic != kWrapperMagic) {
    return std::unexpected(fmt::format("no fat binary: it begins with {:#x}", outer.magic));
  }
  const auto header = read<Header>(outer.data);
  if (header.magic != kMagic || header.version != 1) {
    return std::unexpected(fmt::format("a fat binary of an unknown kind: {:#x}, version {}",
                                       header.magic, header.version));
  }
  // The newest that the emulated GPU can run.
  std::string_view newest;
  uint32_t newest_architecture = 0;
  const std::byte* place = outer.data + header.header_bytes;
  const std::byte* const end = place + header.entries_bytes;
  while (place < end) {
    const auto entry = read<Entry>(place);
    const std::byte* const code = place + entry.header_bytes;
    place = code + entry.bytes;
    if (entry.kind != kPtxKind || entry.architecture > kArchitecture ||
        entry.architecture <= newest_architecture) {
      continue;
    }
    if (entry.compressed_bytes != 0) {
      return std::unexpected("its PTX is compressed: give nvcc --no-compress (CMAKE_CUDA_FLAGS)");
    }
    const std::string_view text(reinterpret_cast<const char*>(code), entry.bytes);
    newest = text.substr(0, text.find('\0'));  // without the padding
    newest_architecture = entry.architecture;
  }
  if (!newest.empty()) return newest;
  return std::unexpected(
      "there is no PTX for compute capability 9.0 in it: give nvcc such a virtual architecture "
      "(-DCMAKE_CUDA_ARCHITECTURES=90a)");
}

}  // namespace lockstep::ptx
