#include "server/daemon/line_budget.h"

#include <algorithm>
#include <utility>

namespace lockstep {

bool LineBudget::take(Time now) {
  const MutexLock lock(mutex_);
  if (now > filled_) {
    const double seconds = std::chrono::duration<double>(now - filled_).count();
    left_ = std::min(burst_, left_ + seconds * per_second_);
    filled_ = now;
  }
  if (left_ < 1) {
    ++left_out_;
    return false;
  }
  left_ -= 1;
  return true;
}

std::optional<uint64_t> LineBudget::left_out(Time now, std::chrono::seconds interval) {
  const MutexLock lock(mutex_);
  if (left_out_ == 0 || now - told_ < interval) return std::nullopt;
  told_ = now;
  return std::exchange(left_out_, 0);
}

}  // namespace lockstep
