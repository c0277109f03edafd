// Numbers from a seed: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace lockstep::ptx {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t operator()() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t end) { return operator()() % end; }

 private:
  uint64_t state_;
};

// Fills memory or registers that are not yet written with random bits. Half of the words are NaNs
// when read as floats of 16, 32 or 64 bits. All come from one random number and shifts, since there
// is much to fill.
inline void fill_with_anything(std::span<std::byte> bytes, uint64_t seed) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  constexpr uint64_t kNoNumbers = 0x7fff7fff7fff7fff;
  const size_t words = bytes.size() / sizeof(uint64_t);
  const uint64_t begin = Random(seed)();
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = begin + i * kStep;
    word ^= word >> 31;
    word ^= word << 17;
    word |= (word >> 40) & 1 ? kNoNumbers : 0;
    std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
}

}  // namespace lockstep::ptx
