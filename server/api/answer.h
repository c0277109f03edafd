// Runs the engine's requests behind one HTTP request and writes the answer, whole or as a stream of
// server-sent events, in the words of one endpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/served_model.h"

namespace lockstep {

// What all parts of an answer start with.
struct AnswerHead {
  std::string id;
  std::string object;        // of a whole answer: "chat.completion"
  std::string chunk_object;  // of an event: "chat.completion.chunk"
  int64_t created_seconds = 0;
  std::string model;  // as the request named it
  std::string fingerprint;
};

// How an endpoint words its choices. Belongs to one HTTP request.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // What a stream says of a choice before anything is generated; null for nothing.
  virtual Json opening(size_t index) = 0;
  // The choices (in the JSON sense) that one output makes in a stream; may be none.
  virtual std::vector<Json> chunks(size_t index, const Output& output) = 0;
  // The choice that all outputs of a request make together.
  virtual Json choice(size_t index, const Output& whole) = 0;
};

struct AnswerPlan {
  AnswerHead head;
  std::vector<Request> requests;  // prompt after prompt, `choices` for each
  size_t choices = 1;
  bool stream = false;
  bool include_usage = false;
};

// Blocks until the answer is given, refused or its client has left; a client that leaves stops its
// requests.
void answer(ServedModel& model, AnswerPlan plan, AnswerFormat& format, const HttpRequest& request,
            HttpResponse& response);

// "cmpl-" and 32 random hexadecimal digits, say.
std::string random_id(std::string_view prefix);

// The head of an answer that starts now.
AnswerHead answer_head(const ServedModel& model, std::string_view id_prefix, std::string object,
                       std::string chunk_object, std::string model_name);

// Adds a later output of the same request.
void append_output(Output& whole, Output&& next);

// {"prompt_tokens":…,"completion_tokens":…,"total_tokens":…,…}. `cached_tokens`: of the prompt.
Json usage_object(uint64_t prompt_tokens, uint64_t generated_tokens, uint64_t cached_tokens = 0);

// "stop" or "length"; null while a request goes on.
Json finish_reason(const Output& output);

}  // namespace lockstep
