// Runs the engine's requests behind one HTTP request and writes the answer, whole or as a stream of
// server-sent events, in the words of one endpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/common/key_lease.h"
#include "server/api/common/served_model.h"
#include "server/api/common/thought_count.h"

namespace lockstep {

struct AnswerUsage {
  uint64_t prompt_tokens = 0;  // each prompt counted once
  uint64_t cached_tokens = 0;  // of them
  uint64_t generated_tokens = 0;
  uint64_t thought_tokens = 0;  // of them
};

// How an endpoint words its answers. Belongs to one HTTP request.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The bytes of a stream: at its beginning, for one output of a request, at its end, and instead
  // of the end when it fails. Not for answers that are never streamed.
  virtual std::string opening(const AnswerUsage& /*usage*/) { return {}; }
  virtual std::string news(size_t /*index*/, const Output& /*output*/) { return {}; }
  virtual std::string ending(const AnswerUsage& /*usage*/) { return {}; }
  virtual std::string failure(const ApiError& /*error*/) { return {}; }
  // What keeps a silent stream alive.
  virtual std::string keep_alive() { return ": keep-alive\n\n"; }

  // The body of a whole answer, from all outputs of each request: as a value, or, where that would
  // be large, as text.
  virtual Json body(const std::vector<Output>& /*whole*/, const AnswerUsage& /*usage*/) {
    return {};
  }
  virtual std::string body_text(const std::vector<Output>& whole, const AnswerUsage& usage) {
    return to_text(body(whole, usage));
  }
  // What it holds of the request's body until the answer is given.
  virtual size_t kept_bytes() const { return 0; }
  // The answer to a request that is refused before anything of the answer is sent.
  virtual void refuse(HttpResponse& response, const ApiError& error) {
    send_error(response, error);
  }
};

struct AnswerPlan {
  std::vector<Request> requests;  // prompt after prompt, `choices` for each
  size_t choices = 1;
  bool stream = false;
  ThoughtCount thoughts = {};   // of each request, before its first token
  std::string constraint = {};  // the field that says what the answer must be, for errors
};

// Blocks until the answer is given, refused or its client has left; a client that leaves stops its
// requests. `lease`: as entered, before the plan was made. The caller holds no values of the body
// any more.
void answer(ServedModel& model, KeyLease& lease, AnswerPlan plan, AnswerWriter& writer,
            const HttpRequest& request, HttpResponse& response);

// A server-sent event without and with a name.
std::string event_text(const Json& data);
std::string event_text(std::string_view name, const Json& data);

// "cmpl-" and 32 random hexadecimal digits, say.
std::string random_id(std::string_view prefix);

// Adds a later output of the same request.
void append_output(Output& whole, Output&& next);

// "stop" or "length"; null while a request goes on.
Json finish_reason(const Output& output);

}  // namespace lockstep
