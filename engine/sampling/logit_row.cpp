#include "engine/sampling/logit_row.h"

#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep {

bool all_finite(std::span<const float> numbers) {
  uint32_t unusable = 0;
  for (const float number : numbers) {
    unusable |= std::abs(number) <= std::numeric_limits<float>::max() ? 0U : 1U;  // 1 for NaN, too
  }
  return unusable == 0;
}

bool LogitRow::is_finite() const {
  return fetch_ != nullptr ? finite_ : all_finite(all_);
}

Result<std::span<const float>> LogitRow::all() {
  if (fetch_ == nullptr || !all_.empty()) return all_;
  auto fetched = fetch_();
  if (fetched) all_ = *fetched;
  return fetched;
}

}  // namespace lockstep
