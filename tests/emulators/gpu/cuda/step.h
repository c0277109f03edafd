// Steps: the work that is enqueued on streams.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tests/emulators/gpu/block.h"

namespace lockstep::ptx {

// One piece of work. Immutable: a recording enqueues the same one again and again.
struct Step {
  enum class Kind {
    kKernel,   // `launch`
    kProduct,  // `task`, which stands for a library's kernel
    kTask,     // `task`: no kernel
  };

  Kind kind = Kind::kTask;
  // A kernel with CUDA's attribute of programmatic stream serialization: it may begin when all
  // blocks of a kernel before it let it.
  bool begins_early = false;
  Launch launch;
  // Returns why it failed; empty: it did not.
  std::function<std::string()> task;
  // False: it may not begin yet, though all before it is done; asked again and again. None: it may.
  std::function<bool()> has_come;

  bool is_kernel() const { return kind != Kind::kTask; }
};

using StepPointer = std::shared_ptr<const Step>;

}  // namespace lockstep::ptx
