// The treatment of a query's scores, and which keys it sees; see AttentionArguments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/kernels/attention.h"

namespace lockstep {

struct QueryTraits {
  float scale = 0.125F;
  size_t window = 0;
  size_t section = 0;
  size_t ahead = 0;
  float score_cap = 0;
  float slope = 0;
  std::optional<float> sink = {};

  // Behind the last key of `context` that a token at `position` sees.
  size_t end(size_t position, size_t context) const {
    return position + 1 + std::min(ahead, context - position - 1);
  }
};

// The traits of the queries that share a KV head.
struct GroupTraits {
  size_t window = 0;
  size_t section = 0;
  size_t ahead = 0;
  float score_cap = 0;
  std::vector<float> slopes = {};  // by query, or none
  std::vector<float> sinks = {};   // likewise

  QueryTraits of(size_t query) const {
    QueryTraits traits{
        .window = window, .section = section, .ahead = ahead, .score_cap = score_cap};
    if (!slopes.empty()) traits.slope = slopes[query];
    if (!sinks.empty()) traits.sink = sinks[query];
    return traits;
  }

  // The arguments point into this object. Their tokens are their sequence's last.
  void set(AttentionArguments& arguments) const {
    arguments.window = window;
    arguments.section = section;
    arguments.ahead = ahead;
    arguments.length = arguments.position + arguments.token_count;
    arguments.score_cap = score_cap;
    arguments.slopes = slopes.empty() ? nullptr : slopes.data();
    arguments.sinks = sinks.empty() ? nullptr : sinks.data();
  }
};

// Each trait by itself and all of them, for up to 7 queries.
inline std::vector<GroupTraits> all_group_traits() {
  const std::vector<float> slopes = {0.5F, 0.25F, 0.004F, 1.0F, 0.0F, 0.0625F, 0.3F};
  const std::vector<float> sinks = {0.5F, -3.0F, 4.0F, 0.0F, 20.0F, -60.0F, 1.25F};
  return {{.score_cap = 0.7F},
          {.sinks = sinks},
          {.slopes = slopes},
          {.section = 70},
          {.window = 90, .section = 128, .score_cap = 2.0F, .slopes = slopes, .sinks = sinks},
          {.section = 256, .score_cap = 30.0F, .sinks = sinks},
          {.ahead = SIZE_MAX, .slopes = slopes},
          {.window = 9, .ahead = 8, .sinks = sinks},
          {.ahead = 1, .score_cap = 2.0F}};
}

}  // namespace lockstep
