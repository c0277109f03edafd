// Streams that consist of blocks one after the other, each of text, of reasoning or of a call: the
// common part of /v1/responses and /v1/messages.
#pragma once

#include <optional>
#include <string>

#include "server/api/common/answer_writer.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {

class BlockStream : public StreamWriter {
 public:
  std::string news(size_t index, const Output& output) final;

 protected:
  explicit BlockStream(TurnRules rules);

  // The events that begin a block, go on with it and end it. `kind` is kText, kReasoning or kCall;
  // `function` is empty but for calls. A block that is not `sound` broke off.
  virtual std::string open_block(TurnEvent::Kind kind, const std::string& function) = 0;
  virtual std::string extend_block(TurnEvent::Kind kind, const std::string& text) = 0;
  virtual std::string close_block(TurnEvent::Kind kind, bool sound) = 0;

  // The last output of the request, once it has come.
  const std::optional<Output>& last() const { return last_; }
  size_t sound_calls() const { return sound_calls_; }

 private:
  std::string tell(const TurnEvent& event);
  std::string change_to(TurnEvent::Kind kind, const std::string& function);
  std::string close(bool sound);
  bool cuts(const Output& last) const;

  TurnParser parser_;
  std::optional<TurnEvent::Kind> open_;
  std::optional<Output> last_;
  size_t blocks_ = 0;
  size_t sound_calls_ = 0;
};

}  // namespace lockstep
