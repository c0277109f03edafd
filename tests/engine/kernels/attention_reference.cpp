#include "tests/engine/kernels/attention_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lockstep {
namespace {

constexpr double kUnitRoundoff = 0x1p-24;

}  // namespace

// With u the unit roundoff: a score is a chain of head_dimension fma and a product, so it is off by
// at most (head_dimension + 1) u scale sum |q k|. A cap makes no error larger, and adds 16 u of
// what it gives; a slope adds u of the sum. A probability is e to a difference (off by u times its
// size) within 4 u, times a factor for its own chunk and each later one: within 4 u again, and u
// for the product. The arguments of all factors add up to at most the range of the scores. The
// relative error of a probability, p, holds for the sum of the probabilities too. Sums over tokens,
// chunks and lanes add u for each of their terms, the quotient one more.
AttentionReference attention_reference(const PagedSequence& sequence, const float* query,
                                       const QueryTraits& traits, size_t position) {
  const size_t dimensions = sequence.head_dimension();
  const double scale = traits.scale;
  const double cap = traits.score_cap;
  const size_t window = traits.window;
  const size_t in_window = window == 0 || window > position ? 0 : position + 1 - window;
  const size_t in_section = traits.section == 0 ? 0 : position - position % traits.section;
  const size_t begin = std::max(in_window, in_section);
  const size_t end = traits.end(position, sequence.context());
  const size_t count = end - begin;
  std::vector<double> scores(count);
  double score_error = 0.0;
  for (size_t i = 0; i < count; ++i) {
    double sizes = 0.0;
    for (size_t d = 0; d < dimensions; ++d) {
      const double product = query[d] * sequence.key(begin + i, d);
      scores[i] += product * scale;
      sizes += std::fabs(product) * scale;
    }
    double error = static_cast<double>(dimensions + 1) * sizes;
    if (cap != 0) {
      scores[i] = cap * std::tanh(scores[i] / cap);
      error += 16 * std::fabs(scores[i]);
    }
    if (traits.slope != 0) {
      const double distance = static_cast<double>(begin + i) - static_cast<double>(position);
      scores[i] -= double{traits.slope} * std::fabs(distance);
      error += std::fabs(scores[i]);
    }
    score_error = std::max(score_error, error);
  }
  const auto [least, most] = std::minmax_element(scores.begin(), scores.end());
  const double greatest = traits.sink ? std::max<double>(*most, *traits.sink) : *most;
  const double range = greatest - (traits.sink ? std::min<double>(*least, *traits.sink) : *least);
  const auto merges =
      static_cast<double>((end - 1) / kAttentionChunkTokens - begin / kAttentionChunkTokens + 1);
  // The score of a token and that of the maximum are both off.
  const double probability_error = 2 * score_error + range + 5 * merges + 4;
  const double output_error = 2 * probability_error + static_cast<double>(count) + 8 + 3 * merges;

  const size_t value_dimensions = sequence.value_dimension();
  AttentionReference result{std::vector<double>(value_dimensions),
                            std::vector<double>(value_dimensions)};
  double sum = traits.sink ? std::exp(*traits.sink - greatest) : 0.0;
  for (size_t i = 0; i < count; ++i) {
    const double probability = std::exp(scores[i] - greatest);
    sum += probability;
    for (size_t d = 0; d < value_dimensions; ++d) {
      result.output[d] += probability * sequence.value(begin + i, d);
      result.bound[d] += probability * std::fabs(sequence.value(begin + i, d));
    }
  }
  for (size_t d = 0; d < value_dimensions; ++d) {
    result.output[d] /= sum;
    // A tenth more for what is of second order, and the subnormal numbers.
    result.bound[d] = result.bound[d] / sum * output_error * kUnitRoundoff * 1.1 + 0x1p-126;
  }
  return result;
}

AttentionReference attention_reference(const PagedSequence& sequence, const float* query,
                                       double scale, size_t position, size_t window) {
  const QueryTraits traits{.scale = static_cast<float>(scale), .window = window};
  return attention_reference(sequence, query, traits, position);
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

std::string describe(const KernelTable& table, const PagedSequence& sequence) {
  return std::string(table.name) + " " + format_name(sequence.format()) + ", head dimension " +
         std::to_string(sequence.head_dimension()) + ", context " +
         std::to_string(sequence.context());
}

}  // namespace lockstep
