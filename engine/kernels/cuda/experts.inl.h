// Kernels of gpu_experts.h that read no weights. Included after gpu_code.h.
#pragma once

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/product_finish.inl.h"
#include "engine/kernels/gpu_experts.h"

namespace lockstep {
namespace {

constexpr unsigned kChoiceThreads = 128;
constexpr unsigned kOrderThreads = 256;
constexpr unsigned kOrderWarps = kOrderThreads / kWarpThreads;
constexpr unsigned kSumThreads = 128;

// An expert in the order of choice. Key 0: there is none.
struct Choice {
  uint32_t key;
  uint32_t expert;

  GPU_FUNCTION bool is_before(const Choice& other) const {
    return key > other.key || (key == other.key && expert < other.expert);
  }
};

GPU_FUNCTION Choice choice_of(float value, uint32_t expert) {
  const bool is_number = value == value;
  return {is_number ? likelihood_key(value) : 0xFFFFFFFFU, expert};
}

// The first of all lanes' in the order of choice, which all of them have.
GPU_FUNCTION Choice first_of_lanes(Choice own) {
  for (unsigned distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const Choice other = {from_lane_across(own.key, distance),
                          from_lane_across(own.expert, distance)};
    if (other.is_before(own)) own = other;
  }
  return own;
}

// Whether weights are the softmax of the scores that are the largest, as most mixtures have it.
// Kernels for it are compiled by themselves (`kPlain`), as are sums of weighted products alone.
inline bool is_plain(const GpuRouting& routing) {
  const Gating& gating = routing.gating;
  return gating.function == GatingFunction::kChosenSoftmax && gating.scale == 1 &&
         gating.group_count == 1 && routing.bias == nullptr;
}

// The values of a token's experts, as a warp has them.
struct ExpertValues {
  GatingFunction function;
  bool chooses_by_value;  // else by the scores
  float most;             // kSoftmax: the largest score ...
  float sum;              // ... and the sum of the powers

  GPU_FUNCTION float of(float score) const {
    switch (function) {
      case GatingFunction::kChosenSoftmax:
        return score;
      case GatingFunction::kSoftmax:
        return exponential_of(score - most) / sum;
      case GatingFunction::kSigmoid:
        return 1.0F / (1.0F + exponential_of(-score));
      case GatingFunction::kSqrtSoftplus:
        return root(greater(score, 0.0F) + logarithm_above_one(exponential_of(-magnitude(score))));
    }
    return score;
  }
  GPU_FUNCTION float for_choice(const GpuRouting& routing, const float* scores,
                                uint32_t expert) const {
    if (!chooses_by_value) return scores[expert];
    const float value = of(scores[expert]);
    return routing.bias == nullptr ? value : value + routing.bias[expert];
  }
};

template <bool kPlain>
GPU_FUNCTION ExpertValues expert_values(const GpuRouting& routing, const float* scores) {
  const Gating& gating = routing.gating;
  ExpertValues values = {gating.function, false, 0, 1};
  if (kPlain) return values;
  values.chooses_by_value = routing.bias != nullptr || gating.group_count > 1;
  if (gating.function != GatingFunction::kSoftmax) return values;
  float most = scores[0];
  for (unsigned expert = lane_index(); expert < routing.expert_count; expert += kWarpThreads) {
    most = greater(most, scores[expert]);
  }
  for (unsigned distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    most = greater(most, from_lane_across(most, distance));
  }
  float sum = 0;
  for (unsigned expert = lane_index(); expert < routing.expert_count; expert += kWarpThreads) {
    sum += exponential_of(scores[expert] - most);
  }
  values.most = most;
  values.sum = add_lanes(sum, kWarpThreads / 2);
  return values;
}

// The sum of a group's largest values.
GPU_FUNCTION float group_sum(const GpuRouting& routing, const float* scores,
                             const ExpertValues& values, unsigned group, unsigned size) {
  const bool takes_two = routing.gating.group_values > 1 && size > 1;
  float largest = values.for_choice(routing, scores, group * size);
  float second = largest;
  for (unsigned index = 1; index < size; ++index) {
    const float value = values.for_choice(routing, scores, group * size + index);
    if (index == 1 || value > second) second = value;
    if (second > largest) {
      const float before = largest;
      largest = second;
      second = before;
    }
  }
  return takes_two ? largest + second : largest;
}

// A bit for each group that a token's experts may be of. A lane takes a group.
GPU_FUNCTION uint32_t open_groups(const GpuRouting& routing, const float* scores,
                                  const ExpertValues& values, unsigned size) {
  const Gating& gating = routing.gating;
  if (gating.group_count == 1) return 1;
  Choice own = {0, lane_index()};
  if (lane_index() < gating.group_count) {
    own = choice_of(group_sum(routing, scores, values, lane_index(), size), lane_index());
  }
  uint32_t open = 0;
  for (unsigned turn = 0; turn < gating.chosen_groups; ++turn) {
    const Choice best = first_of_lanes(own);
    open |= 1U << best.expert;
    if (best.expert == lane_index()) own.key = 0;
  }
  return open;
}

// A warp takes a token, and a lane a choice: lane i the one that comes after i others.
template <bool kPlain>
GPU_FUNCTION Choice choose(const GpuRouting& routing, const float* scores,
                           const ExpertValues& values) {
  uint32_t open = 1;
  unsigned size = 1;
  if (!kPlain) {
    size = static_cast<unsigned>(routing.expert_count / routing.gating.group_count);
    open = open_groups(routing, scores, values, size);
  }
  Choice own = {};
  Choice last = {};
  for (unsigned turn = 0; turn < routing.chosen_count; ++turn) {
    Choice best = {};
    for (unsigned expert = lane_index(); expert < routing.expert_count; expert += kWarpThreads) {
      if (!kPlain && (open >> expert / size & 1U) == 0) continue;
      const float value = kPlain ? scores[expert] : values.for_choice(routing, scores, expert);
      const Choice found = choice_of(value, expert);
      if ((turn == 0 || last.is_before(found)) && found.is_before(best)) best = found;
    }
    last = first_of_lanes(best);
    if (lane_index() == turn) own = last;
  }
  return own;
}

// The weight of the lane's choice before it is divided, and its divisor.
struct ChoiceWeight {
  float value;
  float divisor;
};
template <bool kPlain>
GPU_FUNCTION ChoiceWeight weigh(const GpuRouting& routing, const float* scores,
                                const ExpertValues& values, const Choice& own) {
  const bool chooses = lane_index() < routing.chosen_count;
  const bool is_softmax = kPlain || routing.gating.function == GatingFunction::kChosenSoftmax;
  float value = 0;
  if (is_softmax) {
    const float score = chooses ? scores[own.expert] : 0.0F;
    float most = from_lane(score, 0);
    if (!kPlain && values.chooses_by_value) {
      for (unsigned lane = 1; lane < routing.chosen_count; ++lane) {
        most = greater(most, from_lane(score, lane));
      }
    }
    if (chooses) value = exponential_of(score - most);
  } else if (chooses) {
    value = values.of(scores[own.expert]);
  }
  if (!is_softmax && !routing.gating.is_normalized) return {value, 1};
  float sum = 0;
  for (unsigned lane = 0; lane < routing.chosen_count; ++lane) sum += from_lane(value, lane);
  if (!is_softmax) sum = greater(sum, static_cast<float>(kLeastWeightSum));
  return {value, sum};
}

template <bool kPlain>
GPU_KERNEL_OF(kChoiceThreads)
void choose_experts(GpuRouting routing) {
  follow_launches();
  const unsigned tokens = routing.batch.counts->tokens;
  const unsigned warps = thread_count() / kWarpThreads;
  for (unsigned token = block_row() * warps + warp_index(); token < tokens;
       token += block_rows() * warps) {
    const float* scores = routing.scores + token * routing.score_stride;
    const ExpertValues values = expert_values<kPlain>(routing, scores);
    const Choice own = choose<kPlain>(routing, scores, values);
    const ChoiceWeight weight = weigh<kPlain>(routing, scores, values, own);
    unsigned slot = 0;
    for (unsigned lane = 0; lane < routing.chosen_count; ++lane) {
      slot += from_lane(own.expert, lane) < own.expert ? 1U : 0U;
    }
    if (lane_index() >= routing.chosen_count) continue;
    const size_t choice = token * routing.chosen_count + slot;
    routing.chosen[choice] = own.expert;
    const float share = weight.value / weight.divisor;
    routing.weights[choice] = kPlain ? share : multiply(share, routing.gating.scale);
  }
}

// A block takes an expert, and looks at all choices: each warp at a part of them, in their order.
GPU_KERNEL_OF(kOrderThreads) void order_rows(GpuRouting routing) {
  follow_launches();
  const uint32_t expert = block_column();
  const auto chosen_count = static_cast<uint32_t>(routing.chosen_count);
  const uint32_t choices = routing.batch.counts->tokens * chosen_count;
  const uint32_t part = round_up(divide_up(choices, kOrderWarps), kWarpThreads);
  const uint32_t part_begin = warp_index() * part;
  const uint32_t part_end = part_begin + part < choices ? part_begin + part : choices;

  uint32_t lower = 0;  // rows of the experts before
  uint32_t own = 0;
  GPU_UNROLL_BY(4)
  for (uint32_t choice = part_begin + lane_index(); choice < part_end; choice += kWarpThreads) {
    const uint32_t chosen = routing.chosen[choice];
    lower += chosen < expert ? 1U : 0U;
    own += chosen == expert ? 1U : 0U;
  }
  lower = sum_of_lanes(lower);
  own = sum_of_lanes(own);
  auto* counts = reinterpret_cast<uint32_t*>(shared_memory());  // of each warp both
  if (lane_index() == 0) {
    counts[2 * warp_index()] = lower;
    counts[2 * warp_index() + 1] = own;
  }
  meet_block();
  uint32_t begin = 0;
  uint32_t before = 0;  // of this expert, by the warps before
  for (unsigned warp = 0; warp < kOrderWarps; ++warp) {
    begin += counts[2 * warp];
    if (warp < warp_index()) before += counts[2 * warp + 1];
  }
  if (thread_index() == 0) {
    routing.row_begin[expert] = begin;
    if (expert + 1 == routing.expert_count) routing.row_begin[expert + 1] = choices;
  }

  uint32_t row = begin + before;
  GPU_UNROLL_BY(4)
  for (uint32_t first = part_begin; first < part_end; first += kWarpThreads) {
    const uint32_t choice = first + lane_index();
    const bool is_own = choice < part_end && routing.chosen[choice] == expert;
    const uint32_t lanes = lanes_where(is_own);
    if (is_own) {
      const uint32_t place = row + count_bits(lanes & ((1U << lane_index()) - 1));
      routing.row_tokens[place] = choice / chosen_count;
      routing.choice_rows[choice] = place;
    }
    row += count_bits(lanes);
  }
}

// A warp takes a chunk of 32 columns, a lane a column.
template <bool kPlain>
GPU_KERNEL_OF(kSumThreads)
void sum_experts(GpuExpertSum sum) {
  follow_launches();
  const unsigned tokens = sum.batch.counts->tokens;
  const unsigned warps = thread_count() / kWarpThreads;
  const size_t chunk = static_cast<size_t>(block_column()) * warps + warp_index();
  if (chunk >= divide_up<size_t>(sum.columns, kBlockRows)) return;
  const BlockPlace place = {0, chunk * kBlockRows, chunk};
  const size_t column = place.row + lane_index();
  const bool present = column < sum.columns;
  for (unsigned token = block_row(); token < tokens; token += block_rows()) {
    float y = 0;
    if (present) {
      float* output = sum.output + token * sum.output_stride + column;
      if (sum.accumulate) y = *output;
      GPU_UNROLL_BY(4)
      for (size_t choice = token * sum.chosen_count; choice < (token + 1) * sum.chosen_count;
           ++choice) {
        float product = sum.products[sum.choice_rows[choice] * sum.product_stride + column];
        if (!kPlain && sum.scales != nullptr) {
          product = multiply(product, sum.scales[sum.chosen[choice]]);
        }
        if (!kPlain && sum.biases != nullptr) {
          product += sum.biases[sum.chosen[choice] * sum.bias_stride + column];
        }
        const bool weighs = kPlain || sum.weights != nullptr;
        y = weighs ? multiply_add(sum.weights[choice], product, y) : y + product;
      }
      *output = y;
    }
    for (size_t norm = 0; norm < sum.norm_count; ++norm) {
      const float weight = present ? sum.norms[norm].weight[column] : 0.0F;
      finish_norm(sum.norms[norm], place, y, present, weight, token);
    }
  }
}

}  // namespace

void gpu_route_tokens(void* stream, const GpuRouting& routing) {
  CHECK(routing.chosen_count >= 1 && routing.chosen_count <= kGpuChosenMax &&
            routing.chosen_count <= routing.expert_count,
        "{} of {} experts", routing.chosen_count, routing.expert_count);
  const Gating& gating = routing.gating;
  CHECK(gating.group_count >= 1 && gating.group_count <= kGpuGroupsMax, "a routing among {} groups",
        gating.group_count);
  launch(stream, {.rows = routing.grid_rows, .threads = kChoiceThreads},
         is_plain(routing) ? choose_experts<true> : choose_experts<false>, routing);
  const Grid grid = {.columns = static_cast<unsigned>(routing.expert_count),
                     .threads = kOrderThreads,
                     .shared_bytes = 2 * kOrderWarps * sizeof(uint32_t)};
  launch(stream, grid, order_rows, routing);
}

void gpu_sum_experts(void* stream, const GpuExpertSum& sum) {
  const size_t chunks = divide_up<size_t>(sum.columns, kBlockRows);
  const Grid grid = {
      .columns = static_cast<unsigned>(divide_up<size_t>(chunks, kSumThreads / kWarpThreads)),
      .rows = sum.grid_rows,
      .threads = kSumThreads};
  const bool plain = sum.biases == nullptr && sum.scales == nullptr && sum.weights != nullptr;
  launch(stream, grid, plain ? sum_experts<true> : sum_experts<false>, sum);
}

}  // namespace lockstep
