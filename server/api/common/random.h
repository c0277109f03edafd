// Random numbers of the operating system, for seeds and names. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// A seed for a request that gives none.
uint64_t random_seed();

// The prefix and 32 random hexadecimal digits: "cmpl-0123…".
std::string random_id(std::string_view prefix);

}  // namespace lockstep
