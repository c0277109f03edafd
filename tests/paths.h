// The folder that tests know. In a file of its own, so that what a compiler cache holds of the
// tests does not depend on where the checkout lies.
#pragma once

#include <string>

namespace lockstep {

std::string source_dir();  // of the checkout

}  // namespace lockstep
