// How the keys and values of one KV head lie in a page of the cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// Keys are stored [head_dimension][kPageTokens] (token fastest), values
// [kPageTokens][head_dimension rounded up to 16].
//
// kQ8_0 stores int8 quants in that order and after them f16 scales, one for 32 dimensions of a
// token: of keys [head_dimension / 32][kPageTokens], of values [kPageTokens][head_dimension / 32].
// That is 8.5 bits for an element, whose value is scale * quant, exact in f32. As GGUF's Q8_0, but
// that quants are made with the scale as it is stored:
//   scale = max|x| / 127 in f32, then f16 (nearest even), at most 65504
//   quant = x / scale in f32, rounded to nearest even, from -127 to 127; 0 where the scale is 0
// so that an element up to 127 * 65504 is off by at most half of the scale or 2^-18, whichever is
// more. A block with an element that is no finite number becomes NaN.
enum class KvFormat : uint8_t { kF32, kF16, kBf16, kQ8_0 };

inline constexpr size_t kPageTokens = 64;
inline constexpr size_t kKvBlockDimensions = 32;  // of kQ8_0

// Whether heads of this dimension can be stored so: kQ8_0 wants a multiple of 32.
bool kv_format_fits(KvFormat format, size_t head_dimension);

// The bytes of one page's keys of one KV head, and of its values: whole numbers of 64 bytes. Not
// inline: the files of the instruction sets may export nothing but their rows of the kernel table.
size_t key_block_bytes(KvFormat format, size_t head_dimension);
size_t value_block_bytes(KvFormat format, size_t head_dimension);

}  // namespace lockstep
