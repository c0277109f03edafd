#include "server/http/answer_memory.h"

#include <malloc.h>

namespace lockstep {
namespace {

constexpr size_t kGiveBackBytes = 1 << 20;

}  // namespace

void AnswerMemory::give_back() noexcept {
  if (freed_.load() < kGiveBackBytes) return;
  if (freed_.exchange(0) >= kGiveBackBytes) ::malloc_trim(0);  // one thread of several
}

}  // namespace lockstep
