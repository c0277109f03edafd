// The stacks of all threads, for the log of a process that hangs. Nothing here allocates or takes a
// lock when it writes, so that it works whatever the other threads hold.
#pragma once

#include <initializer_list>
#include <string_view>

#include "server/daemon/log_format.h"
#include "server/daemon/program_symbols.h"

namespace lockstep {

class StackDump {
 public:
  // Takes over one real-time signal, whose handler notes the stack of the thread that it interrupts
  // (system calls go on), and finds the program's symbols. One of them in a process.
  StackDump();

  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;

  // One line per thread but the caller's: its number, name, state and frames, innermost first, as
  // the linker spells them or as module+offset. A thread that does not answer within half a second
  // (it is stopped, or in the kernel for good) is listed without frames. Gives up when the
  // descriptor takes nothing for a second. Of more than 1,024 threads some are left out, of a line
  // of more than 4 KiB the outermost frames.
  void write(int descriptor, const LogFrame& frame);

 private:
  ProgramSymbols symbols_;
};

// Writes the text; false if the descriptor does not take all of it within a second or so. No
// allocation, no lock.
bool write_bounded(int descriptor, std::string_view text);

// The same for a line of the log that consists of these parts. It is written at once, so that other
// threads' lines stand before it or behind it; what 4 KiB do not hold is cut.
bool write_line(int descriptor, const LogFrame& frame,
                std::initializer_list<std::string_view> parts);

}  // namespace lockstep
