#include "engine/model/byte_source.h"

#include <cstring>

#include "engine/base/check.h"

namespace lockstep {

Result<void> MemorySource::read(uint64_t offset, std::span<std::byte> bytes) const {
  CHECK(offset <= bytes_.size() && bytes.size() <= bytes_.size() - offset,
        "{} bytes at {} of {} bytes in memory", bytes.size(), offset, bytes_.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  return {};
}

}  // namespace lockstep
