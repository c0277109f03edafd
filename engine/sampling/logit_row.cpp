#include "engine/sampling/logit_row.h"

#include "engine/sampling/row_loops.h"

namespace lockstep {

bool all_finite(std::span<const float> numbers) {
  return row_loops().all_finite(numbers.data(), numbers.size());
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
