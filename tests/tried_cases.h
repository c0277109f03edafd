// How much of a long test this build runs. A sanitizer makes a program 5 to 40 times as slow and
// looks for faults that other cases do not show sooner; so one case in five is tried in such a
// build, while every build that ships is tested with all. Five divides none of the cycles by which
// the tests choose ranks, workers and ways from a case's number.
#pragma once

#include <cstddef>

namespace lockstep {

size_t tried_cases(size_t count);  // of `count` random ones; at least one
bool is_tried_case(size_t index);  // whether the case with this number is tried; 0 always is

}  // namespace lockstep
