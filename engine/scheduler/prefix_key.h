// The key of a page's contents: a keyed hash over the tenant, the salt and all tokens up to the
// page's end. Without the secret two prefixes cannot be made to collide, and no fields be shifted
// into one another: each is preceded by what it is or how long.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/scheduler/siphash.h"

namespace lockstep {

using PrefixKey = Hash128;

// The key of the empty prefix of a tenant's requests with this salt.
PrefixKey root_key(const HashSecret& secret, std::string_view tenant, std::string_view salt);

// The key of the prefix that is `page_tokens`, one page, longer than that of `before`.
PrefixKey next_key(const HashSecret& secret, const PrefixKey& before,
                   std::span<const int32_t> page_tokens);

}  // namespace lockstep
