// The words of an answer in one dialect: of a whole one, and of a stream of server-sent events.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/engine.h"
#include "server/api/common/api_error.h"

namespace lockstep {

struct AnswerUsage {
  uint64_t prompt_tokens = 0;  // each prompt counted once
  uint64_t cached_tokens = 0;  // of them
  uint64_t generated_tokens = 0;
  uint64_t reasoning_tokens = 0;  // of them
  // Tokens that were drafted for passes to verify, if the client gave a prediction; otherwise 0.
  uint64_t accepted_draft_tokens = 0;
  uint64_t rejected_draft_tokens = 0;
};

// Belongs to one HTTP request.
class BodyWriter {
 public:
  virtual ~BodyWriter() = default;

  // The JSON text of the answer; `whole` holds all outputs of each of the engine's requests.
  virtual std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) = 0;
};

// Belongs to one HTTP request. Each function gives bytes of the stream.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;

  virtual std::string opening(const AnswerUsage& usage) = 0;
  // For one output of the engine's request at `index`.
  virtual std::string news(size_t index, const Output& output) = 0;
  virtual std::string ending(const AnswerUsage& usage) = 0;
  // Instead of the ending, for a stream that fails.
  virtual std::string failure(const ApiError& error) = 0;
  // For a stream that has long been silent.
  virtual std::string keep_alive() = 0;
};

// A comment, which clients skip: keeps a silent stream alive.
inline constexpr std::string_view kKeepAliveComment = ": keep-alive\n\n";

// A server-sent event without and with a name.
inline std::string event_text(const Json& data) {
  return "data: " + to_text(data) + "\n\n";
}
inline std::string event_text(std::string_view name, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, to_text(data));
}

}  // namespace lockstep
