// Pages' parts in memory that records can be written from, with bytes that follow from a number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "engine/tiers/record.h"

namespace lockstep {

class PageParts {
 public:
  explicit PageParts(std::vector<size_t> part_bytes = {kRecordBlockBytes, 3 * kRecordBlockBytes}) {
    for (const size_t bytes : part_bytes) {
      memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kRecordBlockBytes, bytes)),
                           &std::free);
      parts_.emplace_back(memory_.back().get(), bytes);
    }
    fill(0);
  }

  RecordParts parts() const { return parts_; }
  void fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const std::span<std::byte> part : parts_) {
      for (std::byte& byte : part) byte = static_cast<std::byte>(random());
    }
  }
  bool holds(uint64_t seed) const {
    std::mt19937_64 random(seed);
    for (const std::span<std::byte> part : parts_) {
      for (const std::byte byte : part) {
        if (byte != static_cast<std::byte>(random())) return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> memory_;
  std::vector<std::span<std::byte>> parts_;
};

inline StoredKey stored_key(uint64_t number, size_t group = 0) {
  return {{number, ~number}, group};
}

}  // namespace lockstep
