// Queries, keys and values on a GPU between their product and attention.
#include "engine/kernels/gpu_heads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "engine/tensor/format.h"
#include "tests/engine/kernels/cuda/gpu_cache.h"

namespace lockstep {
namespace {

constexpr size_t kTokens = 5;
constexpr size_t kHeads = 3;

// Norm and rotary positions in double; and the greatest size that a sum of a pair has.
std::vector<double> treated(const float* head, size_t dimensions, const float* norm,
                            RotaryPairs pairs, const float* cosines, size_t rotary) {
  double squares = 0;
  for (size_t i = 0; i < dimensions; ++i) squares += std::pow(static_cast<double>(head[i]), 2);
  const double factor =
      1 / std::sqrt(squares / static_cast<double>(dimensions) + static_cast<double>(1e-5F));
  std::vector<double> result(dimensions);
  for (size_t i = 0; i < dimensions; ++i) {
    const auto x = static_cast<double>(head[i]);
    result[i] = norm == nullptr ? x : x * factor * static_cast<double>(norm[i]);
  }
  for (size_t i = 0; cosines != nullptr && i < rotary / 2; ++i) {
    const bool interleaved = pairs == RotaryPairs::kInterleaved;
    double& first = result[interleaved ? 2 * i : i];
    double& second = result[interleaved ? 2 * i + 1 : rotary / 2 + i];
    const double x = first;
    const double y = second;
    const auto cosine = static_cast<double>(cosines[i]);
    const auto sine = static_cast<double>(cosines[rotary / 2 + i]);
    first = x * cosine - y * sine;
    second = x * sine + y * cosine;
  }
  return result;
}

TEST(GpuHeads, queries_are_normed_and_rotated) {
  for (const unsigned dimensions : {64U, 80U, 256U}) {
    const unsigned rotary = dimensions == 80 ? 40 : dimensions;
    const std::vector<float> norm = random_floats(dimensions, 1);
    std::vector<float> table = random_floats(kTokens * rotary, 2);
    for (float& value : table) value = std::tanh(value);
    GpuTestBatch batch({.tokens = 8, .sequences = 1, .pages = 1, .logits = 1});
    batch.writer().add_sequence(std::vector<uint32_t>{0});
    for (uint32_t i = 0; i < kTokens; ++i) batch.writer().add_prompted(0, i, 0);
    for (const bool has_norm : {false, true}) {
      for (const bool rotates : {false, true}) {
        for (const RotaryPairs pairs : {RotaryPairs::kInterleaved, RotaryPairs::kHalves}) {
          const size_t row = kHeads * dimensions;
          const std::vector<float> before = random_floats(kTokens * row, 3);
          std::vector<float> queries = before;
          gpu_prepare_heads(nullptr, {.batch = batch.batch(),
                                      .kv = {.key_dimension = dimensions},
                                      .queries = queries.data(),
                                      .query_stride = row,
                                      .head_count = kHeads,
                                      .query_norm = has_norm ? norm.data() : nullptr,
                                      .epsilon = 1e-5F,
                                      .pairs = pairs,
                                      .rotary_table = rotates ? table.data() : nullptr,
                                      .rotary_stride = rotary,
                                      .rotary_dimensions = rotary,
                                      .grid_rows = 2});
          for (size_t i = 0; i < kTokens * kHeads; ++i) {
            const std::vector<double> expected =
                treated(&before[i * dimensions], dimensions, has_norm ? norm.data() : nullptr,
                        pairs, rotates ? &table[i / kHeads * rotary] : nullptr, rotary);
            double greatest = 0;
            for (const double value : expected) greatest = std::max(greatest, std::fabs(value));
            // The norm's sum is off by fewer than its terms, each element by some roundings more;
            // a pair's turn may cancel, which its size bounds: no cosine or sine is above 1.
            const double bound = (static_cast<double>(dimensions) / 2 + 8) * 0x1p-24 * 8 * greatest;
            for (size_t d = 0; d < dimensions; ++d) {
              ASSERT_NEAR(static_cast<double>(queries[i * dimensions + d]), expected[d], bound)
                  << dimensions << ", " << d;
            }
          }
        }
      }
    }
  }
}

double element(KvFormat format, const std::byte* block, size_t index) {
  if (format == KvFormat::kF32) {
    float value;
    std::memcpy(&value, block + index * sizeof value, sizeof value);
    return static_cast<double>(value);
  }
  if (format == KvFormat::kQ8_0) return static_cast<double>(static_cast<int8_t>(block[index]));
  uint16_t bits;
  std::memcpy(&bits, block + index * sizeof bits, sizeof bits);
  return static_cast<double>(format == KvFormat::kF16 ? half_to_float(bits) : bf16_to_float(bits));
}

double scale_at(KvFormat format, const std::byte* scales, size_t index) {
  if (format != KvFormat::kQ8_0) return 1;
  uint16_t bits;
  std::memcpy(&bits, scales + index * sizeof bits, sizeof bits);
  return static_cast<double>(half_to_float(bits));
}

// As gpu_heads.h describes the blocks, in words of its own.
TEST(GpuHeads, keys_and_values_lie_where_the_header_says) {
  for (const KvFormat format : kGpuKvFormats) {
    for (const HeadDimensions& dimensions :
         {HeadDimensions(64), HeadDimensions(96), HeadDimensions(64, 32), HeadDimensions(32, 96)}) {
      const GpuCache cache(format, dimensions, 2, {70, 3}, 11);
      for (size_t sequence = 0; sequence < 2; ++sequence) {
        for (size_t head = 0; head < 2; ++head) {
          const PagedSequence& stored = cache.stored(sequence, head);
          for (size_t token = 0; token < stored.context(); ++token) {
            const size_t page = cache.pages(sequence)[token / kPageTokens];
            const std::byte* keys = cache.layer().blocks + head * cache.layer().head_stride_bytes +
                                    page * cache.layer().page_stride_bytes;
            const std::byte* values = keys + key_block_bytes(format, dimensions.keys);
            const size_t slot = token % kPageTokens;
            for (size_t d = 0; d < dimensions.keys; ++d) {
              const double key = element(format, keys, (d / 8 * kPageTokens + slot) * 8 + d % 8) *
                                 scale_at(format, keys + dimensions.keys * kPageTokens,
                                          d / 32 * kPageTokens + slot);
              ASSERT_EQ(key, stored.key(token, d)) << format_name(format) << token << ", " << d;
            }
            for (size_t d = 0; d < dimensions.values; ++d) {
              const double value =
                  element(format, values, (slot / 2 * dimensions.values + d) * 2 + slot % 2) *
                  scale_at(format, values + dimensions.values * kPageTokens,
                           slot * (dimensions.values / 32) + d / 32);
              ASSERT_EQ(value, stored.value(token, d)) << format_name(format) << token << ", " << d;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
