// The head of a message of a turn that is made of messages: see MessageSyntax.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/api/common/turn_syntax.h"

namespace lockstep {

struct MessageHead {
  std::string channel;
  std::string recipient;  // empty: the user
};

// Reads the text before MessageSyntax::body; any text is a head.
MessageHead read_message_head(const MessageSyntax& syntax, std::string_view text);

// The ways in which a text can begin at the place of a head.
enum class HeadStart {
  kHead,     // one begins
  kEnd,      // the end of the message before it
  kUnknown,  // more text tells
  kNone,     // neither
};
struct FoundHead {
  HeadStart start = HeadStart::kNone;
  size_t bytes = 0;  // of the end
};
FoundHead find_message_head(const MessageSyntax& syntax, std::string_view text);

// The first place in the text where a message ends or another begins. Where none is found, the
// place up to which there is none, whatever follows.
struct FoundMessageEnd {
  bool found = false;
  size_t position = 0;
};
FoundMessageEnd find_message_end(const MessageSyntax& syntax, std::string_view text);

}  // namespace lockstep
