// Parses templates: Jinja2's statements and expressions.
#pragma once

#include <memory>
#include <string_view>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/syntax.h"

namespace lockstep::jinja {

// Throws a Failure with the line. The source is valid UTF-8.
Template parse(std::string_view source, const TemplateLimits& limits);

}  // namespace lockstep::jinja
