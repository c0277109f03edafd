// The layout of keys and values, the arguments of attention, the parts in which it can be computed,
// and the two functions that it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// How the keys and values of one KV head lie in a page of the cache.
//
// Keys are stored [dimension][kPageTokens] (token fastest), values [kPageTokens][dimension rounded
// up to 16].
//
// kQ8_0 stores int8 quants in that order and after them f16 scales, one for 32 dimensions of a
// token: of keys [head_dimension / 32][kPageTokens], of values [kPageTokens][head_dimension / 32].
// That is 8.5 bits for an element, whose value is scale * quant, exact in f32. As GGUF's Q8_0, but
// that quants are made with the scale as it is stored:
//   scale = max|x| / 127 in f32, then f16 (nearest even), at most 65504
//   quant = x / scale in f32, rounded to nearest even, from -127 to 127; 0 where the scale is 0
// so that an element up to 127 * 65504 is off by at most half of the scale or 2^-18, whichever is
// more. A block with an element that is no finite number becomes NaN.
//
// kQ4_0 has two dimensions of a block in a byte, i in the lower and i + 16 in the upper half, each
// plus 8: of keys [head_dimension / 32][16][kPageTokens] bytes, of values
// [kPageTokens][head_dimension / 32][16]. Scales follow as those of kQ8_0 do. That is 4.5 bits for
// an element. As GGUF's Q4_0, but that quants are made with the scale as it is stored:
//   scale = x / -8 in f32 of the element x that is farthest from 0 (of two, the negative one), then
//           f16 (nearest even), at most 65504 from 0; it may be negative
//   quant = x / scale in f32, rounded to nearest even, from -8 to 7; 0 where the scale is 0
// so that an element is off by at most half of the scale, or a whole one where it is near the
// farthest one's opposite. Blocks that are not finite become NaN.
//
// kQ4H is kQ4_0 of vectors that a Hadamard matrix has turned, which spreads what a few large
// dimensions hold over all and so makes the scales smaller: the caller turns keys and values before
// they are stored, and queries and outputs alike (turns_heads(), KernelTable::hadamard).
enum class KvFormat : uint8_t { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4H };

// The formats of keys and of values.
struct KvFormats {
  KvFormat keys = KvFormat::kF16;
  KvFormat values = KvFormat::kF16;

  constexpr KvFormats() = default;
  constexpr KvFormats(KvFormat both) : keys(both), values(both) {}
  constexpr KvFormats(KvFormat of_keys, KvFormat of_values) : keys(of_keys), values(of_values) {}
  bool are(KvFormat both) const { return keys == both && values == both; }
  friend bool operator==(const KvFormats&, const KvFormats&) = default;
};

inline constexpr size_t kPageTokens = 64;
inline constexpr size_t kKvBlockDimensions = 32;  // that share a scale

// Whether heads of this dimension can be stored so: formats with scales take multiples of 32.
bool kv_format_fits(KvFormat format, size_t head_dimension);

// Whether heads are turned by Hadamard matrices before they are stored.
constexpr bool turns_heads(KvFormat format) {
  return format == KvFormat::kQ4H;
}
// The dimensions that one matrix turns, of a head of this dimension: the largest power of two that
// divides it. Several matrices turn a head of 96 or 576 dimensions, one after the other.
constexpr size_t hadamard_dimensions(size_t head_dimension) {
  return head_dimension & (~head_dimension + 1);
}

// The bytes of one page's keys of one KV head, and of its values: whole numbers of 64 bytes. Not
// inline: the files of the instruction sets may export nothing but their rows of the kernel table.
size_t key_block_bytes(KvFormat format, size_t head_dimension);
size_t value_block_bytes(KvFormat format, size_t head_dimension);

// A token's key and value of one KV head, to be stored.
struct KvRow {
  KvFormats format = {};
  size_t key_dimension = 0;
  size_t value_dimension = 0;  // 0: there is a key alone
  const float* key = nullptr;  // any alignment
  const float* value = nullptr;
};

// Attention of consecutive tokens of one sequence, of their query heads that share one KV head. A
// token sees the keys at its own position and before, at most `window` of them, and with sections
// those of its own section alone: from position / section * section on. Of the keys behind its own
// it sees `ahead` at most, of those before `length`. Pages that no token sees are not looked up;
// what lies outside a token's keys is never read into its result.
//
// Attention in f32: one function of a token and its sequence, however it is called. Keys are taken
// in chunks of kAttentionChunkTokens by their position, each by itself; per query:
//   score[t] = (fma over the dimensions, ascending, from 0) * scale
//              then with a cap     cap * tanh(score / cap), as KernelTable::soft_cap
//              and with slopes     fma(slope, -|the key's position - the token's|, score)
//   maximum  = the greatest score, or -FLT_MAX if that is greater
//   p[t]     = exponential(score[t] - maximum), 0 outside the token's keys
//   sum      : 64 chains, chain t mod 64 adds p[t], p[t + 64] ... from 0; of them vectors of 16:
//              (first + second) + (third + fourth), then the lanes pairwise, 8, 4, 2, 1 apart
//   output   = fma over the token's keys of p[t] * value[t], ascending, from 0
// The chunks are merged in order into M = -FLT_MAX, L = 0, O = 0, or of a query with a sink, which
// is one more score without a value, into M = the sink, L = 1, O = 0:
//   M' = max(M, maximum); old = exponential(M - M'); new = exponential(maximum - M')
//   L = fma(sum, new, L * old);  O = fma(output, new, O * old)
// and the result is O / L. A score or a sink that is NaN makes it NaN.
//
// Attention in bf16: another such function, which takes products of bf16 as kernel_table.h defines
// them (per 32 k an even and an odd chain), and numbers below the normal ones for zero everywhere.
//   q[d]     = bf16(query[d] * (scale * kBf16ScoreScale)), nearest even; keys and values are bf16
//              of what is stored. Scores then are in powers of two.
//   score[t] = the product of q and the key, over the dimensions
//              then with a cap     c * tanh(score / c) for c = cap * kBf16ScoreScale
//              and with slopes     fma(slope * kBf16ScoreScale, the distance as above, score)
// Into M = -FLT_MAX, L[0 .. 15] = 0 and O = 0, or with a sink M = sink * kBf16ScoreScale, L[0] = 1,
// L[1 .. 15] = 0 and O = 0, chunk by chunk, of those with a key that is seen:
//   M'       = max(M, the greatest score)
//   old      = exponential((M - M') * kBf16ScoreUnit); L = L * old; O = O * old
//   p[t]     = 2^floor(x) * c for x = score[t] - M' and r = x - floor(x), rounded down, where c =
//              fma(fma(fma(cubic, r, square), r, linear), r, rounding + 1) - rounding, with the
//              constants below; 0 outside the token's keys. c has 8 bits: p is a bf16.
//   L[i]     : L[i] + p[t] for t = i, i + 16 .. of the chunk, ascending
//   O        = O + the product of p and the values, over the chunk's keys
// and the result is O / L + 0, with L's lanes pairwise, 8, 4, 2, 1 apart. Weights and what they are
// divided by are rounded alike, so that of equal values it gives that value.
struct AttentionArguments {
  KvFormats format = {};
  size_t head_dimension = 0;        // of queries and keys: any; at most kMaxHeadDimension
  size_t value_dimension = 0;       // of values and outputs, likewise
  const std::byte* keys = nullptr;  // the block of page 0 of this layer and KV head
  // Likewise; none: values are the first value_dimension dimensions of the keys as they are stored,
  // in the keys' format.
  const std::byte* values = nullptr;
  size_t page_stride_bytes = 0;     // from a page's block to the next page's, keys and values alike
  const uint32_t* pages = nullptr;  // page numbers of the sequence, in order
  size_t position = 0;              // of the first token; the next ones follow it
  size_t token_count = 1;
  size_t window = 0;               // 0: every key before
  size_t section = 0;              // tokens of a section; 0: there are none
  size_t ahead = 0;                // keys behind a token's own; 0: none
  size_t length = 0;               // tokens of the sequence that have keys; read with `ahead` alone
  const float* queries = nullptr;  // [token][query][head_dimension]; any alignment
  size_t query_stride = 0;         // floats from query to query
  size_t query_token_stride = 0;   // floats from token to token
  size_t query_count = 0;          // at most kMaxQueryGroup
  float scale = 0;
  float score_cap = 0;            // 0: none
  const float* slopes = nullptr;  // one per query, or none
  const float* sinks = nullptr;   // one per query, or none
  float* output = nullptr;        // as queries; any alignment
  size_t output_stride = 0;
  size_t output_token_stride = 0;
};

inline constexpr size_t kMaxHeadDimension = 576;
inline constexpr size_t kMaxQueryGroup = 64;  // of one call: larger groups are treated in parts
inline constexpr size_t kAttentionChunkTokens = 256;
// The most rows of attention in bf16: queries of one KV head that share what its keys and values
// are packed to, which stays in the second cache beside them and their outputs.
inline constexpr size_t kBf16AttentionRows = 512;
// The most elements of their queries, and of their outputs: wide heads have fewer rows.
inline constexpr size_t kBf16AttentionElements = 2 * kMaxQueryGroup * kMaxHeadDimension;

// The constants of attention in bf16: 1 / ln 2, ln 2, and a polynomial that is 2^r for r in [0, 1]
// within 8.6e-5 of it, with 1 for 0. Adding `rounding` leaves a sum 7 bits behind the point.
inline constexpr float kBf16ScoreScale = 0x1.715476p+0F;
inline constexpr float kBf16ScoreUnit = 0x1.62e430p-1F;
inline constexpr float kBf16PowerCubic = 0.0770669994F;
inline constexpr float kBf16PowerSquare = 0.2276450714F;
inline constexpr float kBf16PowerLinear = 0.6951167544F;
inline constexpr float kBf16PowerRounding = 98304.0F;

// The position of the first key that a token at `position` sees.
size_t first_seen_key(size_t position, size_t window, size_t section);

// The chunks that a token at `position` sees keys of.
struct AttentionChunks {
  size_t begin = 0;
  size_t end = 0;
};
AttentionChunks attention_chunks(size_t position, size_t window, size_t section = 0);

// The floats of a partial result, which one chunk gives for one token: per query the maximum, the
// sum and the output. A multiple of 64 bytes; 64-byte aligned.
size_t attention_partial_floats(size_t query_count, size_t value_dimension);

}  // namespace lockstep
