#include "server/daemon/last_resort.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#include <atomic>
#include <limits>

namespace lockstep {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// A signal's handler has nothing but what is global.
std::atomic<int> ticks_left = kNever;
static_assert(std::atomic<int>::is_always_lock_free);

void tick(int) {
  if (ticks_left.fetch_sub(1, std::memory_order_relaxed) > 0) return;
  signal(SIGALRM, SIG_DFL);
  raise(SIGALRM);  // takes effect when this returns
}

void set_timer(time_t seconds) {
  const itimerval each = {{seconds, 0}, {seconds, 0}};
  setitimer(ITIMER_REAL, &each, nullptr);
}

}  // namespace

LastResort::LastResort() {
  struct sigaction action = {};
  action.sa_handler = tick;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGALRM, &action, nullptr);
}

void LastResort::end_after(unsigned seconds) {
  ticks_left.store(static_cast<int>(seconds), std::memory_order_relaxed);
  set_timer(1);
}

void LastResort::never() {
  ticks_left.store(kNever, std::memory_order_relaxed);  // first: a tick may be under way
  set_timer(0);
}

void LastResort::unblock() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace lockstep
