#include "server/api/openai/error_object.h"

namespace lockstep {
namespace {

Json text_or_null(const std::optional<std::string>& text) {
  return text ? Json(*text) : Json(nullptr);
}

}  // namespace

Json error_object(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", text_or_null(error.parameter)},
            {"code", text_or_null(error.code)}}}};
}

}  // namespace lockstep
