#include "server/api/common/stream_writer.h"

#include <fmt/format.h>

namespace lockstep {

std::string event_text(const Json& data) {
  return "data: " + to_text(data) + "\n\n";
}

std::string event_text(std::string_view name, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, to_text(data));
}

}  // namespace lockstep
