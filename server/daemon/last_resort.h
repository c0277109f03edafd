// Ends the process by SIGALRM when nobody within it does any more: the kernel's part of the
// watchdog.
//
// It counts seconds in which the process ran, as ticks that have come: while it is stopped
// (SIGSTOP, a machine that sleeps) at most one more comes, however long that takes. alarm() would
// count all of it and end the process in the moment it goes on.
#pragma once

namespace lockstep {

// Takes over SIGALRM, which block_signals() keeps from all threads but those that unblock() it. One
// object in a process at a time. Its functions may be called by any thread; none waits.
class LastResort {
 public:
  LastResort();

  LastResort(const LastResort&) = delete;
  LastResort& operator=(const LastResort&) = delete;

  // Unless called again before, the process ends when this many seconds are over, and at most one
  // or two later. Outlives the object.
  void end_after(unsigned seconds);
  void never();

  // From here on the calling thread may be the one that counts.
  static void unblock();
};

}  // namespace lockstep
