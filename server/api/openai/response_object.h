// The objects that the answers of POST /v1/responses consist of, whole and streamed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/json_text.h"
#include "engine/engine.h"
#include "server/api/common/answer_usage.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {

// The members that all objects of one response share.
struct ResponseHead {
  std::string id;
  int64_t created_seconds = 0;
  std::string model;   // as the request named it
  std::string echoed;  // of the request: the text of an object's members without its braces
};

// The head of a response that starts now.
ResponseHead response_head(std::string model, std::string echoed);

// A response without what is echoed, as is finished_response().
Json response_object(const ResponseHead& head, std::string_view status, Json output);
Json finished_response(const ResponseHead& head, const Output& last, Json output,
                       const AnswerUsage& usage);

// The text of an object that is not empty, with more members, which are text already.
std::string with_members(const Json& object, std::string_view members);

// The status of an item.
inline constexpr std::string_view kItemDone = "completed";
inline constexpr std::string_view kItemCut = "incomplete";

// A part of an item: of text, or of reasoning.
Json content_part(TurnEvent::Kind kind, std::string text);

// A message or a reasoning item, with its parts or without (while it is in progress).
Json content_item(TurnEvent::Kind kind, const std::string& id, std::string_view status,
                  Json content);

Json call_item(const std::string& id, const std::string& call_id, const std::string& function,
               std::string arguments, std::string_view status);

}  // namespace lockstep
