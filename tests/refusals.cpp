#include "tests/refusals.h"

#include <execinfo.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

// Written before the epoch, which is another after each call of refuse_of_threads(), and read after
// it.
std::atomic<const char*> thread_name = nullptr;
std::atomic<int64_t> thread_number = 0;
std::atomic<int64_t> thread_count = 0;
std::atomic<uint64_t> epoch = 0;
std::atomic<int64_t> most_counted = 0;

struct OwnCount {
  uint64_t epoch = 0;
  bool bears_name = false;
  int64_t allocations = 0;
};
thread_local OwnCount own;

// The last allocation of such a thread that was refused: its number and its callers.
struct LastRefusal {
  int64_t number = lockstep::refusals::kNever;
  std::array<void*, 40> callers = {};
  int depth = 0;

  void note(int64_t refused_number) {
    number = refused_number;
    depth = backtrace(callers.data(), static_cast<int>(callers.size()));
  }
};
LastRefusal last_refusal;

// Tells of it where the program ends.
void tell_last_refusal(int signal) {
  if (last_refusal.number != lockstep::refusals::kNever) {
    std::array<char, 100> line{};
    const int length =
        std::snprintf(line.data(), line.size(), "allocation %lld of the thread '%s' was refused:\n",
                      static_cast<long long>(last_refusal.number), thread_name.load());
    if (write(STDERR_FILENO, line.data(), static_cast<size_t>(length)) == length) {
      backtrace_symbols_fd(last_refusal.callers.data(), last_refusal.depth, STDERR_FILENO);
    }
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

const bool tells = [] {
  void* caller = nullptr;
  backtrace(&caller, 1);  // the first call loads a library
  return std::signal(SIGABRT, tell_last_refusal) != SIG_ERR;
}();

bool bears(const char* name) {
  char own_name[16] = {};
  return name != nullptr && pthread_getname_np(pthread_self(), own_name, sizeof(own_name)) == 0 &&
         std::strcmp(own_name, name) == 0;
}

bool is_refused_of_thread() {
  const uint64_t now = epoch;
  if (own.epoch != now) own = {.epoch = now, .bears_name = bears(thread_name)};
  if (!own.bears_name) return false;
  const int64_t number = own.allocations++;
  int64_t most = most_counted;
  while (most <= number && !most_counted.compare_exchange_weak(most, number + 1)) {
  }
  const int64_t first = thread_number;
  if (first == lockstep::refusals::kNever || number < first || number >= first + thread_count) {
    return false;
  }
  last_refusal.note(number);
  return true;
}

bool is_refused() {
  using namespace lockstep::refusals;
  if (is_refused_of_thread()) return true;
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

namespace lockstep::refusals {

void refuse_of_threads(const char* name, int64_t number, int64_t count) {
  thread_name = name;
  thread_number = number;
  thread_count = count;
  most_counted = 0;
  ++epoch;
}

int64_t counted_of_threads() {
  return most_counted;
}

}  // namespace lockstep::refusals

void* operator new(size_t size) {
  if (is_refused()) {
    ++lockstep::refusals::refused;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// With a sanitizer its own would otherwise take what is given back below.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (is_refused()) {
    ++lockstep::refusals::refused;
    return nullptr;
  }
  return std::malloc(size > 0 ? size : 1);
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
