// Norms that are a part of a sum between GPUs: what the sum and the kernels that form a norm by
// themselves give, one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <vector>

#include "engine/base/checked_math.h"
#include "engine/collectives/gpu_sum_launch.h"
#include "engine/kernels/gpu_rows.h"
#include "tests/engine/collectives/cuda/simulated_gpus.h"
#include "tests/engine/collectives/random_partials.h"

namespace lockstep {
namespace {

// Whose whole units are not aligned.
enum class Odd { kNone, kResidual, kWeights, kBf16, kF32 };

struct Case {
  size_t ranks = 2;
  size_t rows = 1;
  size_t columns = 32;
  Odd odd = Odd::kNone;
  bool bf16 = false;
  bool two_shots = false;
  uint32_t row_limit = 1000;
  size_t channels = 4;
};

std::ostream& operator<<(std::ostream& out, const Case& sum) {
  return out << sum.ranks << " ranks, " << sum.rows << " x " << sum.columns
             << (sum.bf16 ? " as bf16" : " as f32") << " in " << (sum.two_shots ? 2 : 1)
             << " shots, " << sum.channels << " channels, odd: " << static_cast<int>(sum.odd);
}

// The output of a norm, which begins with bits that nobody has written.
struct Normed {
  explicit Normed(const Case& sum)
      : bf16_stride(round_up<size_t>(sum.columns, 32) + (sum.odd == Odd::kBf16 ? 5 : 4)),
        f32_stride(round_up<size_t>(sum.columns, 32) + (sum.odd == Odd::kF32 ? 5 : 4)),
        chunk_stride(bf16_stride / 32 + 1),
        bf16(sum.rows * bf16_stride, 0x1234),
        f32(sum.rows * f32_stride, -5.0F),
        chunk_sums(sum.rows * chunk_stride, -1.0F) {}

  bool has_bits_of(const Normed& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return same(bf16, other.bf16) && same(f32, other.f32) && same(chunk_sums, other.chunk_sums);
  }

  size_t bf16_stride;
  size_t f32_stride;
  size_t chunk_stride;
  std::vector<uint16_t> bf16;
  std::vector<float> f32;
  std::vector<float> chunk_sums;
};

// A rank's residual, to which the sum is added, and two norms of it: of all rows in both forms, and
// of those whose logits are wanted, in bf16.
class Place {
 public:
  explicit Place(const Case& sum)
      : stride_(round_up<size_t>(sum.columns, 4) + (sum.odd == Odd::kResidual ? 3 : 0)),
        residual_(random_values(sum.rows * stride_, 7)),
        first_weight_(sum.odd == Odd::kWeights ? 1 : 0),
        weights_(random_values(2 * stride_ + 4, 8)),
        of_tokens_(sum),
        of_logits_(sum) {}

  float* residual() { return residual_.data(); }
  size_t stride() const { return stride_; }

  const float* weight(size_t norm) const {
    return weights_.data() + norm * round_up<size_t>(stride_, 4) + first_weight_;
  }
  static GpuRows rows(Normed& normed, bool of_tokens) {
    return {.bf16 = normed.bf16.data(),
            .bf16_stride = normed.bf16_stride,
            .f32 = of_tokens ? normed.f32.data() : nullptr,
            .f32_stride = normed.f32_stride};
  }
  Normed& normed(size_t norm) { return norm == 0 ? of_tokens_ : of_logits_; }

  bool has_bits_of(const Place& other) const {
    return std::memcmp(residual_.data(), other.residual_.data(),
                       residual_.size() * sizeof(float)) == 0 &&
           of_tokens_.has_bits_of(other.of_tokens_) && of_logits_.has_bits_of(other.of_logits_);
  }

 private:
  size_t stride_;
  std::vector<float> residual_;
  size_t first_weight_;
  std::vector<float> weights_;
  Normed of_tokens_;
  Normed of_logits_;
};

// Every third token's logits are wanted.
struct Wanted {
  explicit Wanted(size_t tokens) : row_of_token(tokens, kGpuNoRow) {
    for (uint32_t token = 1; token < tokens; token += 3) {
      row_of_token[token] = static_cast<uint32_t>(tokens_of_rows.size());
      tokens_of_rows.push_back(token);
    }
  }
  std::vector<uint32_t> row_of_token;
  std::vector<uint32_t> tokens_of_rows;
};

GpuAllReduce sum_of(const Case& sum, const std::vector<float>& partial,
                    const std::vector<size_t>& contributors, Place& place) {
  return {.partial = partial.data(),
          .partial_stride = place.stride(),
          .output = place.residual(),
          .output_stride = place.stride(),
          .row_count = sum.rows,
          .column_count = sum.columns,
          .row_limit = &sum.row_limit,
          .contributors = contributors,
          .bf16 = sum.bf16,
          .two_shots = sum.two_shots};
}

void add_norms(const Wanted& wanted, Place& place, GpuAllReduce& reduce) {
  for (; reduce.norm_count < 2; ++reduce.norm_count) {
    const size_t norm = reduce.norm_count;
    Normed& normed = place.normed(norm);
    reduce.norms[norm] = {.weight = place.weight(norm),
                          .rows = Place::rows(normed, norm == 0),
                          .chunk_sums = normed.chunk_sums.data(),
                          .chunk_stride = normed.chunk_stride,
                          .row_of_token = norm == 0 ? nullptr : wanted.row_of_token.data()};
  }
}

void norm_rows(const Case& sum, Wanted& wanted, Place& place) {
  GpuBatchCounts counts = {};
  counts.tokens = static_cast<uint32_t>(std::min<size_t>(sum.rows, sum.row_limit));
  for (const uint32_t token : wanted.tokens_of_rows) counts.logits += token < counts.tokens ? 1 : 0;
  GpuBatch batch;
  batch.counts = &counts;
  batch.logit_tokens = wanted.tokens_of_rows.data();
  for (const size_t norm : {0U, 1U}) {
    Normed& normed = place.normed(norm);
    gpu_norm_rows(nullptr, {.batch = batch,
                            .which = norm == 0 ? GpuRowSet::kTokens : GpuRowSet::kLogits,
                            .residual = place.residual(),
                            .residual_stride = place.stride(),
                            .columns = sum.columns,
                            .weight = place.weight(norm),
                            .rows = Place::rows(normed, norm == 0),
                            .sums = normed.chunk_sums.data(),
                            .sum_stride = normed.chunk_stride,
                            .grid_rows = 2});
  }
}

void expect_norms(const Case& sum) {
  SCOPED_TRACE(::testing::Message() << sum);
  MadeUpGpus gpus(sum.ranks, sum.channels);
  Wanted wanted(sum.rows);
  std::vector<size_t> contributors;
  std::vector<Place> apart(sum.ranks, Place(sum));
  std::vector<Place> joined(sum.ranks, Place(sum));
  std::vector<std::vector<float>> partials;
  for (size_t rank = 0; rank < sum.ranks; ++rank) {
    contributors.push_back(rank);
    partials.push_back(
        random_values(sum.rows * joined[0].stride(), static_cast<uint32_t>(rank) + 1));
  }
  gpus.run([&](size_t rank) {
    gpu_all_reduce(nullptr, sum_of(sum, partials[rank], contributors, apart[rank]),
                   gpus.peers(rank));
    GpuAllReduce reduce = sum_of(sum, partials[rank], contributors, joined[rank]);
    add_norms(wanted, joined[rank], reduce);
    gpu_all_reduce(nullptr, reduce, gpus.peers(rank));
  });
  for (size_t rank = 0; rank < sum.ranks; ++rank) {
    norm_rows(sum, wanted, apart[rank]);
    EXPECT_TRUE(joined[rank].has_bits_of(apart[rank])) << "rank " << rank;
    EXPECT_EQ(gpus.failure(rank), 0U);
  }
}

// In one shot and in two, as f32 and as bf16.
void expect_norms_however_sent(Case sum) {
  for (const bool bf16 : {false, true}) {
    for (const bool two_shots : {false, true}) {
      sum.bf16 = bf16;
      sum.two_shots = two_shots;
      expect_norms(sum);
    }
  }
}

// A chunk that is not whole, one alone, several, rows of several blocks, many rows.
TEST(GpuSumNorms, have_the_bits_of_a_sum_and_of_norms_behind_it) {
  for (const size_t ranks : {2U, 3U, 4U, 8U}) {
    for (const auto& [rows, columns] : std::vector<std::pair<size_t, size_t>>{
             {1, 32}, {2, 7}, {5, 45}, {3, 200}, {2, 1063}, {40, 96}}) {
      expect_norms_however_sent({.ranks = ranks, .rows = rows, .columns = columns});
    }
  }
}

TEST(GpuSumNorms, have_the_same_bits_where_they_are_not_aligned) {
  for (const Odd odd : {Odd::kResidual, Odd::kWeights, Odd::kBf16, Odd::kF32}) {
    for (const size_t columns : {96U, 107U}) {
      expect_norms_however_sent({.ranks = 3, .rows = 4, .columns = columns, .odd = odd});
    }
  }
}

// A rank's share of a piece ends within a warp, and pieces follow one another.
TEST(GpuSumNorms, have_the_same_bits_in_several_pieces) {
  for (const size_t channels : {1U, 2U}) {
    expect_norms_however_sent({.ranks = 3, .rows = 3, .columns = 4129, .channels = channels});
  }
}

TEST(GpuSumNorms, leave_rows_beyond_the_limit_alone) {
  for (const uint32_t limit : {0U, 1U, 4U, 7U}) {
    expect_norms_however_sent({.ranks = 3, .rows = 7, .columns = 161, .row_limit = limit});
  }
}

TEST(GpuSumNormsDeathTest, refuse_places_in_what_is_summed) {
  const Case sum = {.rows = 2, .columns = 64};
  MadeUpGpus gpus(2);
  Place place(sum);
  std::vector<float> partial(2 * place.stride());
  const std::vector<size_t> contributors = {0, 1};
  GpuAllReduce reduce = sum_of(sum, partial, contributors, place);
  reduce.norm_count = 1;
  reduce.norms[0].chunk_sums = partial.data() + partial.size() - 1;
  EXPECT_DEATH(gpu_sum_launch(reduce, gpus.peers(0)), "norm 0 is stored over what is summed");
}

}  // namespace
}  // namespace lockstep
