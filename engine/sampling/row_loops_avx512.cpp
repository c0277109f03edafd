#include "engine/sampling/row_loops.inl.h"

namespace lockstep {

const RowLoops& avx512_row_loops() {
  return Loops::kRow;
}

}  // namespace lockstep
