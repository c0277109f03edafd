// What ggml calls its types: for messages about those that are not computed with here.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// "IQ4_XS"; empty for a number that is none of those known here.
std::string_view ggml_type_name(uint32_t ggml_type);

}  // namespace lockstep
