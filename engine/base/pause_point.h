// Lets long work make way for other work of its kind. A function that may take milliseconds calls
// pause_point() every few microseconds, where it holds no lock that others want; the thread's
// handler decides what happens there.
#pragma once

namespace lockstep {

class PauseHandler {
 public:
  virtual ~PauseHandler() = default;
  // Called by the working thread; may block it.
  virtual void pause() = 0;
};

// This thread's; null: it goes on at once.
inline thread_local PauseHandler* pause_handler = nullptr;

inline void pause_point() {
  if (pause_handler != nullptr) pause_handler->pause();
}

}  // namespace lockstep
