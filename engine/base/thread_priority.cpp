#include "engine/base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace lockstep {
namespace {

// A share of 110 to 1024 (sched(7), "The nice value"): nearly nothing is taken from the others, and
// the thread still moves on a machine that is busy for hours.
constexpr int kNice = 10;
constexpr uint64_t kSliceNanoseconds = 100'000;  // the least that the kernel takes

// struct sched_attr of the kernel's first version: the C library has none.
struct SchedulingAttributes {
  uint32_t size_bytes = sizeof(SchedulingAttributes);
  uint32_t policy = SCHED_BATCH;
  uint64_t flags = 0;
  int32_t nice = kNice;
  uint32_t priority = 0;
  uint64_t runtime = kSliceNanoseconds;
  uint64_t deadline = 0;
  uint64_t period = 0;
};

}  // namespace

void lower_thread_priority() {
  SchedulingAttributes attributes;
  if (::syscall(SYS_sched_setattr, 0, &attributes, 0U) == 0) return;
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  static_cast<void>(::setpriority(PRIO_PROCESS, thread, kNice));
}

}  // namespace lockstep
