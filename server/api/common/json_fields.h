// The fields of a JSON object, read strictly: null means unset, unknown fields are never looked at,
// and a value of the wrong type or out of range is an error that names the field. The first error
// stays; getters go on and give nothing, so that a parser can read all fields and ask once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "server/api/common/api_error.h"
#include "server/http/http_request.h"

namespace lockstep {

class JsonFields {
 public:
  // `object` must be an object and outlive this. `path` is put before names in errors:
  // "messages[2]." or "".
  explicit JsonFields(const Json& object, std::string path = "");

  std::optional<bool> boolean(std::string_view name);
  // 5 is an integer; 5.0 and 5e0 are not.
  std::optional<int64_t> integer(std::string_view name, int64_t minimum, int64_t maximum);
  std::optional<double> number(std::string_view name, double minimum, double maximum);
  std::optional<std::string> text(std::string_view name);
  const Json* object(std::string_view name);
  const Json* array(std::string_view name);
  // The member of any type; null if it is absent or null.
  const Json* any(std::string_view name) const;

  // Records an error about a field, unless there is one already.
  void refuse(std::string_view name, std::string message);
  // Takes over the error of the reader of a field within this object, if it has one.
  void adopt(const JsonFields& inner);
  // 400 if the field is there and asks for something (not null, false, "", [] or {}).
  void refuse_unsupported(std::string_view name);

  const std::optional<ApiError>& error() const { return error_; }
  const std::string& path() const { return path_; }

 private:
  void wrong_type(std::string_view name, std::string_view expected, const Json& value);

  const Json& object_;
  std::string path_;
  std::optional<ApiError> error_;
};

// One element of a list of token ids, or nothing if it is no integer below `vocabulary_size`.
std::optional<int32_t> token_id(const Json& value, uint32_t vocabulary_size);

// The body of a POST as an object: checks Content-Type (415), JSON and UTF-8 (400). Its value takes
// many times the text: within Preparation::run() alone.
ApiResult<Json> parse_body(const HttpRequest& request);

}  // namespace lockstep
