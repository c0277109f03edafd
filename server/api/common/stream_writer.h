// The words of a stream of server-sent events, in one dialect.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/base/json_text.h"
#include "engine/engine.h"
#include "server/api/common/answer_usage.h"
#include "server/api/common/api_error.h"

namespace lockstep {

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
std::string event_text(const Json& data);
std::string event_text(std::string_view name, const Json& data);

}  // namespace lockstep
