// Numbers from a seed: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014).
#pragma once

#include <cstdint>

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

  // What memory and registers hold that nobody has written: any bits, and half of the time such as
  // are no number for floats of 16, 32 and 64 bits.
  uint64_t anything() {
    const uint64_t bits = operator()();
    return (bits & 1) != 0 ? bits : bits | 0x7fff7fff7fff7fff;
  }

 private:
  uint64_t state_;
};

}  // namespace lockstep::ptx
