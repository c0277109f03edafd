#include "tests/refusals.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>

namespace {

bool is_refused() {
  using namespace lockstep::refusals;
  if (is_exempt || (spares_most && !is_chosen)) return false;
  if (refuses_all) return true;
  if (left_in_row > 0) {
    --left_in_row;
    return true;
  }
  const bool is_first = allocations_left >= 0 && allocations_left.fetch_sub(1) == 0;
  if (is_first) left_in_row = in_a_row - 1;
  return is_first;
}

}  // namespace

void* operator new(size_t size) {
  if (is_refused()) {
    ++lockstep::refusals::refused;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

extern "C" int epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) noexcept {
  if (lockstep::refusals::refuses_watches && operation == EPOLL_CTL_ADD) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, descriptor, event));
}
