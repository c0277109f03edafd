#include "server/daemon/request_log.h"

#include <any>

#include "server/api/common/generation_note.h"

namespace lockstep {
namespace {

constexpr size_t kPathBytes = 200;  // enough to know it again

void add_generation(LogFields& fields, const GenerationNote& note) {
  fields.add("prompt_tokens", note.prompt_tokens)
      .add("cached_tokens", note.cached_tokens)
      .add("generated_tokens", note.generated_tokens)
      .add("finish", note.finish);
  if (note.queue_seconds) fields.add_seconds("queue_seconds", *note.queue_seconds);
  if (note.first_token_seconds) {
    fields.add_seconds("first_token_seconds", *note.first_token_seconds);
  }
  if (note.per_token_seconds) fields.add_seconds("per_token_seconds", *note.per_token_seconds);
}

}  // namespace

LogFields request_fields(LogFormat format, const HttpRecord& record) {
  const auto* note = std::any_cast<GenerationNote>(&record.note);
  LogFields fields(format, "request");
  fields.add("id", record.request_id);
  if (!record.principal.empty()) fields.add("key", record.principal);
  fields.add("client", record.remote_address)
      .add("method", record.method)
      .add("path", record.path.substr(0, kPathBytes));
  if (!record.route.empty() && record.route != record.path) fields.add("route", record.route);
  fields.add("status", record.status);
  if (note != nullptr) add_generation(fields, *note);
  if (record.client_gone) fields.add("client_left", true);
  fields.add("sent_bytes", record.sent_bytes).add_seconds("seconds", record.seconds);
  if (note != nullptr && !note->body.empty()) fields.add("body", note->body);
  return fields;
}

bool is_routine(const HttpRecord& record) {
  return record.route.starts_with("/health") || record.route == "/metrics";
}

}  // namespace lockstep
