// Memory as plans name it: an arena and an offset. A plan holds no address, so it can be compared,
// printed and made before anything is taken; a rank looks addresses up in its ArenaAddresses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace lockstep {

enum class Arena : uint8_t {
  kNowhere,   // no memory at all
  kWeights,   // of this rank
  kScratch,   // activations of this rank alone
  kExchange,  // activations of which every rank has a copy, at the same offset
  kKv,        // this rank's part of the KV cache
  kLogits,    // rank 0's, into which every rank writes
};
inline constexpr size_t kArenaCount = 6;

// The memory of a T, or of an array of them. Default: none, which is false, and stays none when
// elements are added.
template <typename T>
struct ArenaOffset {
  Arena arena = Arena::kNowhere;
  size_t bytes = 0;  // from the arena's beginning

  explicit operator bool() const { return arena != Arena::kNowhere; }
  ArenaOffset operator+(size_t elements) const {
    return *this ? ArenaOffset{arena, bytes + elements * sizeof(T)} : *this;
  }
  operator ArenaOffset<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {arena, bytes};
  }
  friend bool operator==(const ArenaOffset&, const ArenaOffset&) = default;
};

// The beginnings of the arenas that a rank uses. 0: it has none of that kind.
class ArenaAddresses {
 public:
  uintptr_t& operator[](Arena arena) { return begins_[static_cast<size_t>(arena)]; }
  uintptr_t operator[](Arena arena) const { return begins_[static_cast<size_t>(arena)]; }

  // Null where there is no memory.
  template <typename T>
  T* at(const ArenaOffset<T>& offset) const {
    return reinterpret_cast<T*>((*this)[offset.arena] + offset.bytes);
  }

 private:
  std::array<uintptr_t, kArenaCount> begins_ = {};  // by Arena; kNowhere's is 0
};

}  // namespace lockstep
