// The stream that launch() in gpu_code.h takes. Null is a stream that runs everything at once.
#pragma once

#include <functional>

namespace lockstep {

class LaunchStream {
 public:
  virtual ~LaunchStream() = default;

  // Runs what a kernel may do before the launches before it are done, and gives the rest, which is
  // run once, by the same thread.
  using Kernel = std::function<std::move_only_function<void()>()>;
  // Runs a kernel, or keeps it until it is its turn.
  virtual void enqueue_kernel(Kernel begin) = 0;
  // The same for one that does nothing before: a library's.
  virtual void enqueue_library(std::function<void()> work) = 0;
  // The same for one that other streams may keep waiting: false, and what follows stays where it is
  // until the stream is waited for again.
  virtual void enqueue_waiting(std::function<bool()> work) = 0;
};

}  // namespace lockstep
