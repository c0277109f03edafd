// Grams of tokens and how far they are looked for: what drafters that repeat texts have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/token_id.h"

namespace lockstep {

inline constexpr size_t kGram = 3;  // tokens: shorter repetitions are chance in most texts
inline constexpr size_t kCandidatesMost = 8;  // places of a gram that are compared
inline constexpr size_t kVisitsMost = 64;     // of a slot's places, most of which are candidates
inline constexpr size_t kMatchMost = 32;      // tokens that are compared
inline constexpr TokenId kBetweenTexts = -1;  // no token

inline uint64_t hash_of_gram(std::span<const TokenId, kGram> gram) {
  uint64_t hash = 0;
  for (const TokenId token : gram) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29U;
  }
  return hash;
}

}  // namespace lockstep
