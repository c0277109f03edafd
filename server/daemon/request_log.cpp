#include "server/daemon/request_log.h"

#include "engine/base/log.h"

namespace lockstep {
namespace {

// A path from a client as the log can hold it: one line of printable ASCII.
std::string loggable(std::string_view text) {
  std::string result(text.substr(0, 200));
  for (char& letter : result) {
    if (letter < 0x20 || letter > 0x7e) letter = '?';
  }
  return result;
}

}  // namespace

void log_request(const HttpRecord& record, const std::optional<GenerationNote>& note) {
  // Probes and scrapes come every few seconds.
  const bool routine = record.route.starts_with("/health") || record.route == "/metrics";
  const auto level = routine ? spdlog::level::debug : spdlog::level::info;
  std::string generated;
  if (note) {
    generated = fmt::format(", {} prompt and {} generated tokens, finish {}", note->prompt_tokens,
                            note->generated_tokens, note->finish);
  }
  spdlog::log(level, "request {}: {} {} {}{}{}, {:.3f} s", loggable(record.request_id),
              loggable(record.method), loggable(record.path), record.status, generated,
              record.client_gone ? ", client left" : "", record.seconds);
}

}  // namespace lockstep
