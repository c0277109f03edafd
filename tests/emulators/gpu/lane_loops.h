// Makes the instructions that compute from what they do in one lane.
#pragma once

#include <cstdint>
#include <utility>

#include "tests/emulators/gpu/operations.h"
#include "tests/emulators/gpu/program.h"
#include "tests/emulators/gpu/warp.h"

namespace lockstep::ptx {

template <typename Signature>
struct LaneLoop;

template <typename Result, typename... Operands>
struct LaneLoop<Result(Operands...)> {
  // A register that is written is none of those read, or is the very same: lanes do not depend on
  // each other, so the loop becomes vector instructions.
  template <typename Function, size_t... kIndex>
  static void loop(Result* result, std::index_sequence<kIndex...>, const Operands*... operands) {
#pragma GCC ivdep
    for (uint32_t lane = 0; lane < kLanes; ++lane) result[lane] = Function{}(operands[lane]...);
  }

  template <typename Function>
  static void run(Warp& warp, const Instruction& instruction) {
    const uint32_t* const registers = instruction.registers;
    [&]<size_t... kIndex>(std::index_sequence<kIndex...> indices) {
      loop<Function>(warp.lanes<Result>(registers[0]), indices,
                     warp.lanes<const Operands>(registers[kIndex + 1])...);
    }
    (std::index_sequence_for<Operands...>{});
  }
};

// The operation whose lanes compute `function`, a lambda without captures, of that signature.
template <typename Signature, typename Function>
Operation each_lane(Function) {
  return []<typename Result, typename... Operands>(std::type_identity<Result(Operands...)>) {
    return Operation{&LaneLoop<Result(Operands...)>::template run<Function>,
                     sizeof(Result),
                     {sizeof(Operands)...}};
  }(std::type_identity<Signature>{});
}

}  // namespace lockstep::ptx
