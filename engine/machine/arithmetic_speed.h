// How fast processors multiply and add when nothing has to come from memory: what bounds the speed
// of prompts.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace lockstep {

// One kind of arithmetic of one instruction set, on registers alone.
struct ArithmeticLoop {
  std::string_view instruction_set;  // as the kernel table's rows
  std::string_view operation;
  size_t operations_per_round;  // a multiplication and an addition are two
  bool (*is_supported)();       // by this machine
  void (*run)(size_t rounds);   // only where it is supported
};

// All that are known.
std::span<const ArithmeticLoop> arithmetic_loops();

// Operations per second.
struct ArithmeticSpeed {
  double all_cores = 0;
  double one_core = 0;
};

// The best of several rounds, which take `seconds` together and several milliseconds at least, with
// one thread per entry of `cpus` (-1: anywhere). Fails with kMachineRefused when there are no such
// threads.
Result<ArithmeticSpeed> measure_arithmetic(const ArithmeticLoop& loop, std::span<const int> cpus,
                                           double seconds);

}  // namespace lockstep
