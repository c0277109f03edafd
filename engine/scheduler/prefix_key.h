// What a page's contents are called: a keyed hash over whose they are and all tokens up to the
// page's end. Nobody without the secret can make two prefixes meet, and no fields can be shifted
// into one another: each is preceded by what it is or how long.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/scheduler/siphash.h"

namespace lockstep {

using PrefixKey = Hash128;

// Of the empty prefix of a tenant's requests with this salt.
PrefixKey root_key(const HashSecret& secret, std::string_view tenant, std::string_view salt);

// Of the prefix that `page_tokens` prolong by a page.
PrefixKey next_key(const HashSecret& secret, const PrefixKey& before,
                   std::span<const int32_t> page_tokens);

}  // namespace lockstep
