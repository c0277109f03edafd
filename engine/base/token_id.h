// A token of a vocabulary, by its index there; negative: none.
#pragma once

#include <cstdint>

namespace lockstep {

using TokenId = int32_t;

}  // namespace lockstep
