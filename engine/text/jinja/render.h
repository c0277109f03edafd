// Rendering a parsed template. ChatTemplate does it with the local clock.
#pragma once

#include <ctime>
#include <functional>
#include <string>

#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/syntax.h"

namespace lockstep::jinja {

// The time of day that strftime_now shows, broken down.
struct LocalTime {
  std::tm calendar{};
  int microseconds = 0;
};
using Clock = std::function<LocalTime()>;
LocalTime read_local_clock();

Result<Template> compile(std::string_view source, const TemplateLimits& limits);
Result<TracedText> render(const Template& program, const TemplateLimits& limits,
                          const nlohmann::ordered_json& variables, const Clock& clock);

}  // namespace lockstep::jinja
