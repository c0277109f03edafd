#include "engine/sampling/row_loops.h"

#include "engine/sampling/row_loops.inl.h"

namespace lockstep {

const RowLoops& narrow_row_loops() {
  return Loops::kRow;
}

const RowLoops& row_loops() {
  static const RowLoops& widest = __builtin_cpu_supports("avx512f") ? avx512_row_loops()
                                  : __builtin_cpu_supports("avx2")  ? avx2_row_loops()
                                                                    : narrow_row_loops();
  return widest;
}

}  // namespace lockstep
