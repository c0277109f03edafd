#include "tests/emulators/gpu/shared_touches.h"

#include <algorithm>

namespace lockstep::ptx {
namespace {

thread_local std::vector<std::unique_ptr<SharedTouches>> spare;

}  // namespace

SharedTouches::Pointer SharedTouches::take(size_t bytes) {
  Pointer touches;
  if (spare.empty()) {
    touches.reset(new SharedTouches);
  } else {
    touches.reset(spare.back().release());
    spare.pop_back();
  }
  touches->pass_barrier();  // whatever was touched was before it
  if (touches->written_.size() < bytes) {
    touches->written_.resize(bytes);
    touches->read_.resize(bytes);
  }
  return touches;
}

void SharedTouches::GiveBack::operator()(SharedTouches* touches) const {
  spare.emplace_back(touches);
}

void SharedTouches::pass_barrier() {
  now_ = static_cast<Touch>(now_ + kWarps);
  if (now_ != 0) return;
  // After 2^10 barriers the numbers begin anew.
  std::ranges::fill(written_, Touch{0});
  std::ranges::fill(read_, Touch{0});
  now_ = kWarps;
}

}  // namespace lockstep::ptx
