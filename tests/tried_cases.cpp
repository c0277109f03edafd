#include "tests/tried_cases.h"

namespace lockstep {

size_t tried_cases(size_t count) {
  return (count + LOCKSTEP_CASES_PER_TRIED - 1) / LOCKSTEP_CASES_PER_TRIED;
}

bool is_tried_case(size_t index) {
  return index % LOCKSTEP_CASES_PER_TRIED == 0;
}

}  // namespace lockstep
