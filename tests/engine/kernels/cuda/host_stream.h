// What launch() in gpu_code.h takes for a stream. Null is a stream that runs everything at once.
#pragma once

#include <functional>

namespace lockstep {

class HostStream {
 public:
  virtual ~HostStream() = default;

  // Runs a kernel's grid, or keeps it until it is its turn.
  virtual void enqueue_kernel(std::function<void()> grid) = 0;
  // The same for a kernel that other streams may keep waiting: false, and what follows stays where
  // it is until the stream is waited for again.
  virtual void enqueue_waiting(std::function<bool()> grid) = 0;
};

}  // namespace lockstep
