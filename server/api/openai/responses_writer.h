// The answers of POST /v1/responses: a response with its items, and the events that build it.
#pragma once

#include <string>
#include <vector>

#include "server/api/common/block_writer.h"

namespace lockstep {

class ResponsesWriter final : public BlockWriter {
 public:
  // `model`: as the request named it. `echoed`: what the answer repeats of the request, as the text
  // of an object's members without its braces; empty: nothing.
  ResponsesWriter(TurnRules rules, std::string model, std::string echoed);

  std::string opening(const AnswerUsage& usage) override;
  std::string ending(const AnswerUsage& usage) override;
  std::string failure(const ApiError& error) override;
  std::string body_text(const std::vector<Output>& whole, const AnswerUsage& usage) override;
  size_t kept_bytes() const override { return echoed_.size(); }

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
  // Without what is echoed, as is finished().
  Json response(std::string_view status, Json output) const;
  Json finished(const Output& last, Json output, const AnswerUsage& usage) const;

  std::string id_;
  int64_t created_seconds_;
  std::string model_;
  std::string echoed_;
  int64_t sequence_number_ = 0;
  bool progress_told_ = false;
  // The item that is open, and those that are done.
  std::string item_id_;
  std::string call_id_;
  std::string function_;
  std::string text_;  // of the item: text, thoughts or arguments
  Json items_ = Json::array();
};

}  // namespace lockstep
