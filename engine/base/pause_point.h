// Lets long work make way for other work of its kind. A function that may take milliseconds calls
// pause_point() every few microseconds, where it holds no lock that others want; the thread's
// handler decides what happens there, and may count the steps that such work says it has taken.
#pragma once

#include <cstdint>

namespace lockstep {

class PauseHandler {
 public:
  virtual ~PauseHandler() = default;
  // Called by the working thread; may block it. `steps` as pause_point() has them.
  virtual void pause(uint64_t steps) = 0;

  // The work holds so much now, as its own budgets count it (note_held_bytes()). Its thread's.
  uint64_t held_bytes = 0;
};

// This thread's; null: it goes on at once.
inline thread_local PauseHandler* pause_handler = nullptr;

// This thread's work holds so many bytes more, or fewer, than before.
inline void note_held_bytes(int64_t bytes) noexcept {
  if (pause_handler != nullptr) pause_handler->held_bytes += static_cast<uint64_t>(bytes);
}

// `steps`: of the work since the last pause point, as its own budget counts them, each about a
// twentieth of a microsecond: for work that can be far more than the bytes that it is given tell of
// (templates, grammars). They depend on the work that was done alone, not on the machine or its
// other load. None for work that grows with those bytes.
inline void pause_point(uint64_t steps = 0) {
  if (pause_handler != nullptr) pause_handler->pause(steps);
}

}  // namespace lockstep
