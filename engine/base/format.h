// fmt for files that log, or append formatted text to a string.
#pragma once

#include <fmt/format.h>

// The formatter is compiled once, in format.cpp. With the header of version 9 alone it would be
// compiled anew in every such file, a seventh to a fifth of its time. (CMakeLists.txt asks for that
// version, whose formatter has this signature.)
extern template void fmt::detail::vformat_to<char>(fmt::detail::buffer<char>&,
                                                   fmt::basic_string_view<char>,
                                                   fmt::basic_format_args<fmt::format_context>,
                                                   fmt::detail::locale_ref);
