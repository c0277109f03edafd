#include "engine/base/format.h"

// The library has it too, but not under the name that clang gives it.
template void fmt::detail::vformat_to<char>(fmt::detail::buffer<char>&,
                                            fmt::basic_string_view<char>,
                                            fmt::basic_format_args<fmt::format_context>,
                                            fmt::detail::locale_ref);
