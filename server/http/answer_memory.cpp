#include "server/http/answer_memory.h"

#include <malloc.h>

namespace lockstep {
namespace {

constexpr size_t kGiveBackBytes = 1 << 20;

}  // namespace

void give_back_memory(size_t freed_bytes) noexcept {
  if (freed_bytes >= kGiveBackBytes) ::malloc_trim(0);
}

void AnswerMemory::give_back() noexcept {
  if (freed_.load() < kGiveBackBytes) return;
  give_back_memory(freed_.exchange(0));  // of several threads one finds it
}

}  // namespace lockstep
