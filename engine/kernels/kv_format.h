// How the keys and values of one KV head lie in a page of the cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// Keys are stored [head_dimension][kPageTokens] (token fastest), values
// [kPageTokens][head_dimension rounded up to 16].
enum class KvFormat : uint8_t { kF32, kF16, kBf16 };

inline constexpr size_t kPageTokens = 64;

// Of one page's keys of one KV head and of its values: whole numbers of 64 bytes. Not inline: the
// files of the instruction sets may export nothing but their rows of the kernel table.
size_t key_block_bytes(KvFormat format, size_t head_dimension);
size_t value_block_bytes(KvFormat format, size_t head_dimension);

}  // namespace lockstep
