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

GPU_FUNCTION Choice choice_of(const float* scores, uint32_t expert) {
  const float score = scores[expert];
  const bool is_number = score == score;
  return {is_number ? likelihood_key(score) : 0xFFFFFFFFU, expert};
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

// A warp takes a token, and a lane a choice: lane i the one that comes after i others.
GPU_FUNCTION Choice choose(const GpuRouting& routing, const float* scores) {
  Choice own = {};
  Choice last = {};
  for (unsigned turn = 0; turn < routing.chosen_count; ++turn) {
    Choice best = {};
    for (unsigned expert = lane_index(); expert < routing.expert_count; expert += kWarpThreads) {
      const Choice found = choice_of(scores, expert);
      if ((turn == 0 || last.is_before(found)) && found.is_before(best)) best = found;
    }
    last = first_of_lanes(best);
    if (lane_index() == turn) own = last;
  }
  return own;
}

GPU_KERNEL_OF(kChoiceThreads) void choose_experts(GpuRouting routing) {
  follow_launches();
  const unsigned tokens = routing.batch.counts->tokens;
  const unsigned warps = thread_count() / kWarpThreads;
  for (unsigned token = block_row() * warps + warp_index(); token < tokens;
       token += block_rows() * warps) {
    const float* scores = routing.scores + token * routing.score_stride;
    const Choice own = choose(routing, scores);
    const bool chooses = lane_index() < routing.chosen_count;
    const float score = chooses ? scores[own.expert] : 0.0F;
    const float most = from_lane(score, 0);
    const float likelihood = chooses ? exponential_of(score - most) : 0.0F;
    float sum = 0;
    unsigned slot = 0;
    for (unsigned lane = 0; lane < routing.chosen_count; ++lane) {
      sum += from_lane(likelihood, lane);
      slot += from_lane(own.expert, lane) < own.expert ? 1U : 0U;
    }
    if (!chooses) continue;
    const size_t choice = token * routing.chosen_count + slot;
    routing.chosen[choice] = own.expert;
    routing.weights[choice] = likelihood / sum;
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
GPU_KERNEL_OF(kSumThreads) void sum_experts(GpuExpertSum sum) {
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
        const float* product = sum.products + sum.choice_rows[choice] * sum.product_stride;
        y = multiply_add(sum.weights[choice], product[column], y);
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
  launch(stream, {.rows = routing.grid_rows, .threads = kChoiceThreads}, choose_experts, routing);
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
  launch(stream, grid, sum_experts, sum);
}

}  // namespace lockstep
