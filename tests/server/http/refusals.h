// An allocator and a kernel that refuse: operator new and epoll_ctl() of the whole test program.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::refusals {

inline constexpr int64_t kNever = -1;
inline std::atomic<int64_t> allocations_left = kNever;  // before the one that is refused
inline std::atomic<int64_t> refused = 0;                // allocations so far
inline std::atomic<bool> refuses_all = false;
inline std::atomic<bool> refuses_watches = false;  // of further descriptors
inline thread_local bool is_exempt = false;        // the test's own thread

}  // namespace lockstep::refusals
