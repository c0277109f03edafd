// The folders that tests know. In a file of their own, so that what a compiler cache holds of the
// tests does not depend on where the checkout lies.
#pragma once

#include <string>

namespace lockstep {

std::string source_dir();     // of the checkout
std::string test_data_dir();  // outside material; may be missing: then skip, saying so

}  // namespace lockstep
