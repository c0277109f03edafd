#include "server/api/common/json_fields.h"

#include <cmath>
#include <utility>

#include "engine/base/ascii.h"

namespace lockstep {
namespace {

bool asks_for_nothing(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || (!value.is_number() && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

// An integer from JSON as int64, if it is one and fits.
std::optional<int64_t> exact_integer(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<int64_t>();
}

bool is_json_media_type(std::string_view header) {
  return ascii_lower(trimmed(header.substr(0, header.find(';')))) == "application/json";
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {}

const Json* JsonFields::any(std::string_view name) const {
  const auto member = object_.find(name);
  return member == object_.end() || member->is_null() ? nullptr : &*member;
}

void JsonFields::refuse(std::string_view name, std::string message) {
  if (error_) return;
  const std::string parameter = path_ + std::string(name);
  error_ = bad_parameter(parameter, fmt::format("'{}': {}", parameter, message));
}

void JsonFields::adopt(const JsonFields& inner) {
  if (!error_) error_ = inner.error();
}

void JsonFields::wrong_type(std::string_view name, std::string_view expected, const Json& value) {
  refuse(name, fmt::format("must be {}, not {}", expected, kind_name(value)));
}

void JsonFields::refuse_unsupported(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr || asks_for_nothing(*value)) return;
  refuse(name, "is not supported by this server; leave it out");
}

std::optional<bool> JsonFields::boolean(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(name, "a boolean", *value);
  return std::nullopt;
}

std::optional<int64_t> JsonFields::integer(std::string_view name, int64_t minimum,
                                           int64_t maximum) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) {
    wrong_type(name, "an integer", *value);
    return std::nullopt;
  }
  const auto number = exact_integer(*value);
  if (number && *number >= minimum && *number <= maximum) return number;
  refuse(name, fmt::format("must be from {} to {}, not {}", minimum, maximum, to_text(*value)));
  return std::nullopt;
}

std::optional<double> JsonFields::number(std::string_view name, double minimum, double maximum) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    wrong_type(name, "a number", *value);
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (number >= minimum && number <= maximum) return number;
  refuse(name, fmt::format("must be from {} to {}, not {}", minimum, maximum, to_text(*value)));
  return std::nullopt;
}

std::optional<std::string> JsonFields::text(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  wrong_type(name, "a string", *value);
  return std::nullopt;
}

const Json* JsonFields::object(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr || value->is_object()) return value;
  wrong_type(name, "an object", *value);
  return nullptr;
}

const Json* JsonFields::array(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr || value->is_array()) return value;
  wrong_type(name, "an array", *value);
  return nullptr;
}

std::optional<int32_t> token_id(const Json& value, uint32_t vocabulary_size) {
  const auto number = exact_integer(value);
  if (!number || *number < 0 || *number >= static_cast<int64_t>(vocabulary_size)) {
    return std::nullopt;
  }
  return static_cast<int32_t>(*number);
}

ApiResult<Json> parse_body(const HttpRequest& request) {
  const std::string_view type = request.header("content-type");
  if (!is_json_media_type(type)) {
    return std::unexpected(ApiError{
        .status = 415,
        .message = fmt::format("Content-Type must be application/json, not \"{:.100}\"", type),
        .code = "unsupported_media_type"});
  }
  auto body = parse_json(request.body, {.depth = request.nesting_max});
  if (!body) {
    return std::unexpected(bad_request("The request's body was refused: " + body.error().message));
  }
  if (!body->is_object()) {
    return std::unexpected(bad_request(
        fmt::format("The request's body must be a JSON object, not {}", kind_name(*body))));
  }
  return std::move(*body);
}

}  // namespace lockstep
