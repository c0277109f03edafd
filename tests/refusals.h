// An allocator and a kernel that refuse: operator new and epoll_ctl() of the whole test program.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::refusals {

inline constexpr int64_t kNever = -1;
inline std::atomic<int64_t> allocations_left = kNever;  // before the one that is refused
inline std::atomic<int64_t> refused = 0;                // allocations so far
inline std::atomic<int64_t> left_in_row = 0;            // still to be refused
inline std::atomic<bool> refuses_all = false;
inline std::atomic<bool> refuses_watches = false;  // of further descriptors
inline thread_local bool is_exempt = false;        // the test's own thread
inline std::atomic<int64_t> in_a_row = 1;          // are refused then
inline std::atomic<bool> spares_most = false;      // refuses those threads alone that are chosen
inline thread_local bool is_chosen = false;

// From here on each thread that bears this name (pthread_setname_np()) counts its allocations, the
// first one as number 0, and is refused `count` of them from this number on; kNever: none. So a
// number means the same allocation each time, whatever the other threads do. A program that aborts
// tells which one was refused last, and where. `name` is of static storage; null: threads no longer
// count.
void refuse_of_threads(const char* name, int64_t number, int64_t count = 1);
// The most allocations that one such thread has counted since then.
int64_t counted_of_threads();

}  // namespace lockstep::refusals
