// The tables of filters, by file; find_filter looks into all of them.
#pragma once

#include <span>

#include "engine/text/jinja/arguments.h"

namespace lockstep::jinja {

std::span<const Native> text_filters();
std::span<const Native> number_filters();
std::span<const Native> sequence_filters();
std::span<const Native> selection_filters();

std::span<const Native> string_methods();
std::span<const Native> string_searches();

}  // namespace lockstep::jinja
