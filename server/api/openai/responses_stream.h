// The stream of POST /v1/responses: the events that build a response and its items.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/api/common/block_stream.h"
#include "server/api/openai/response_object.h"

namespace lockstep {

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
