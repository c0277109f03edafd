// The answers of POST /v1/responses, whole and streamed, and the objects that they consist of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/engine.h"
#include "server/api/common/answer_writer.h"
#include "server/api/common/block_stream.h"
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

// The whole answer of POST /v1/responses: a response with its items.
class ResponsesBody final : public BodyWriter {
 public:
  ResponsesBody(TurnRules rules, ResponseHead head)
      : rules_(std::move(rules)), head_(std::move(head)) {}

  std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  TurnRules rules_;
  ResponseHead head_;
};

// The stream of POST /v1/responses: the events that build a response and its items.
class ResponsesStream final : public BlockStream {
 public:
  ResponsesStream(TurnRules rules, ResponseHead head);

  std::string opening(const AnswerUsage& usage) override;
  std::string ending(const AnswerUsage& usage) override;
  std::string failure(const ApiError& error) override;
  std::string keep_alive() override { return std::string(kKeepAliveComment); }

 protected:
  std::string open_block(TurnEvent::Kind kind, const std::string& function) override;
  std::string extend_block(TurnEvent::Kind kind, const std::string& text) override;
  std::string close_block(TurnEvent::Kind kind, bool sound) override;

 private:
  // An event of this type with the members and the next sequence number.
  std::string event(std::string_view type, Json members);
  // `response`: without what is echoed.
  std::string response_event(std::string_view type, const Json& response);
  // That the answer is being made, once: the long echo is not sent twice while the request waits.
  std::string tell_progress();
  // An event about the item that is open.
  std::string item_event(std::string_view type, Json members);

  ResponseHead head_;
  int64_t sequence_number_ = 0;
  bool progress_told_ = false;
  // The item that is open, and those that are done.
  std::string item_id_;
  std::string call_id_;
  std::string function_;
  std::string text_;  // of the item: text, reasoning or arguments
  Json items_ = Json::array();
};

}  // namespace lockstep
