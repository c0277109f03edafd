// The folder that tests know, and what else they are told by their environment. In a file of their
// own, so that what a compiler cache holds of the tests does not depend on where the checkout lies.
#pragma once

#include <string>

namespace lockstep {

std::string source_dir();  // of the checkout

// The row of the kernel table that processors are given where a test names none: LOCKSTEP_ISA, or
// empty for the machine's own choice.
std::string kernel_row();

}  // namespace lockstep
