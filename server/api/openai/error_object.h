// An error in OpenAI's words.
#pragma once

#include <optional>
#include <string>

#include "engine/base/json.h"
#include "server/api/common/api_error.h"

namespace lockstep {

// {"error":{"message","type","param","code"}}.
inline Json error_object(const ApiError& error) {
  const auto text_or_null = [](const std::optional<std::string>& text) {
    return text ? Json(*text) : Json(nullptr);
  };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", text_or_null(error.parameter)},
            {"code", text_or_null(error.code)}}}};
}

}  // namespace lockstep
