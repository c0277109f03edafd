#include "engine/scheduler/prompt_work.h"

namespace lockstep {

double prompt_work(size_t begin, size_t count) {
  const auto tokens = static_cast<double>(count);
  const double keys_mean = static_cast<double>(begin) + (tokens + 1) / 2;
  return tokens * (1 + keys_mean / kKeysPerToken);
}

size_t prompt_tokens_within(double work, size_t begin, size_t most) {
  size_t fitting = 0;
  size_t beyond = most + 1;
  while (fitting + 1 < beyond) {
    const size_t middle = fitting + (beyond - fitting) / 2;
    (prompt_work(begin, middle) <= work ? fitting : beyond) = middle;
  }
  return fitting;
}

}  // namespace lockstep
