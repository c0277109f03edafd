// A simulated sequence of keys and values in pages, for tests and benchmarks of attention.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"

namespace lockstep {

// As attention takes them; kQ4H is kQ4_0 to it.
inline constexpr KvFormat kAllKvFormats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16,
                                             KvFormat::kQ8_0, KvFormat::kQ4_0};
// As GPUs have them.
inline constexpr KvFormat kGpuKvFormats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16,
                                             KvFormat::kQ8_0};
// Some pairs of different ones.
inline constexpr KvFormats kMixedKvFormats[] = {{KvFormat::kQ8_0, KvFormat::kQ4_0},
                                                {KvFormat::kQ4_0, KvFormat::kF16},
                                                {KvFormat::kBf16, KvFormat::kQ4H},
                                                {KvFormat::kF32, KvFormat::kQ8_0}};

// For loops over a few sizes.
using Sizes = std::initializer_list<size_t>;

// "q8_0"; "q8_0/q4_0" of keys and values that differ.
std::string format_name(const KvFormats& format);

// The least head dimension from this one on that the format fits.
size_t fitting_dimension(const KvFormats& format, size_t head_dimension);

// Normally distributed, with deviation 1.
std::vector<float> random_floats(size_t count, uint32_t seed);

// The dimensions of a head's keys and queries, and of its values and outputs.
struct HeadDimensions {
  HeadDimensions(size_t both) : keys(both), values(both) {}
  HeadDimensions(size_t of_keys, size_t of_values) : keys(of_keys), values(of_values) {}

  size_t keys;
  size_t values;
};

// 32 elements of kQ8_0 or of the formats of 4 bits, as attention.h says.
struct KvQuants {
  uint16_t scale;
  std::array<int8_t, kKvBlockDimensions> quants;
};
KvQuants quantize_kv(KvFormat format, const float* values);
// The place of dimension `dimension` of a head, of the token in slot `slot`, among a page's bytes
// of keys or values in kQ8_0 or 4 bits, and the bit in that byte from which it is stored.
struct KvQuantPlace {
  size_t byte;
  unsigned bit;
};
KvQuantPlace place_of_key(KvFormat format, size_t dimension, size_t slot);
KvQuantPlace place_of_value(KvFormat format, size_t head_dimension, size_t dimension, size_t slot);
// The bytes of a page's quants, behind which its scales lie.
size_t kv_quant_bytes(KvFormat format, size_t head_dimension);

// Makes of a row of one key or value what a cache of this format stores.
void store_row(KvFormat format, std::span<float> row);

// The rows of one KV head, in pages laid out as kernel_table.h says. Page numbers are a random
// permutation; what is not a key or a value of the context has every bit of its bytes equal to
// `filler`'s.
class PagedSequence {
 public:
  PagedSequence(const KvFormats& format, HeadDimensions dimensions, size_t context, uint32_t seed,
                uint8_t filler = 0);

  // The arguments for the context's last `token_count` tokens. Queries are rows of head_dimension()
  // floats, one after the other, token after token, outputs of value_dimension().
  AttentionArguments arguments(const float* queries, size_t query_count, float* output,
                               size_t token_count = 1) const;

  const KvFormats& format() const { return format_; }
  size_t head_dimension() const { return dimensions_.keys; }
  size_t value_dimension() const { return dimensions_.values; }
  const std::vector<uint32_t>& pages() const { return pages_; }
  size_t page_count() const { return pages_.size(); }
  size_t context() const { return context_; }
  const std::byte* key_block(size_t page) const;
  const std::byte* value_block(size_t page) const;

  // As stored, exactly.
  double key(size_t token, size_t dimension) const;
  double value(size_t token, size_t dimension) const;

  void set_key(size_t token, size_t dimension, float value);
  void copy_keys_to_values();

  // Makes every element of these tokens' keys and values NaN.
  void spoil(size_t token_begin, size_t token_end);

  // Replaces the order of the pages in memory.
  void permute_pages(uint32_t seed);

 private:
  struct AlignedDelete {
    void operator()(std::byte* p) const;
  };

  std::span<const float> key_row(size_t token) const;
  std::span<float> key_row(size_t token);
  std::span<const float> value_row(size_t token) const;
  std::span<float> value_row(size_t token);
  void write_pages();
  void write_key(size_t slot, std::span<const float> key, std::byte* keys) const;
  void write_value(size_t slot, std::span<const float> value, std::byte* values) const;

  KvFormats format_;
  HeadDimensions dimensions_;
  size_t context_;
  uint8_t filler_;
  std::vector<float> keys_;    // [context][head_dimension()], rounded to the format
  std::vector<float> values_;  // [context][value_dimension()], likewise
  std::vector<uint32_t> pages_;
  size_t page_stride_bytes_;
  std::unique_ptr<std::byte[], AlignedDelete> blocks_;
};

}  // namespace lockstep
