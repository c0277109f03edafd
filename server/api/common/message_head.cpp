#include "server/api/common/message_head.h"

#include <algorithm>

#include "server/api/common/text_marks.h"

namespace lockstep {
namespace {

// The word behind the mark, where that is in the text.
std::string word_behind(std::string_view text, std::string_view mark) {
  if (mark.empty()) return "";
  const size_t found = text.find(mark);
  if (found == std::string_view::npos) return "";
  text.remove_prefix(found + mark.size());
  return std::string(text.substr(0, text.find_first_of(" \n\t\r<")));
}

}  // namespace

MessageHead read_message_head(const MessageSyntax& syntax, std::string_view text) {
  return {word_behind(text, syntax.channel), word_behind(text, syntax.recipient)};
}

FoundHead find_message_head(const MessageSyntax& syntax, std::string_view text) {
  for (const std::string_view end : syntax.ends) {
    if (!end.empty() && text.starts_with(end)) return {HeadStart::kEnd, end.size()};
  }
  // Without channels a head may say nothing.
  const std::string_view begins[] = {syntax.start, syntax.recipient,
                                     syntax.channel.empty() ? syntax.body : syntax.channel};
  for (const std::string_view begin : begins) {
    if (text.starts_with(begin)) return {HeadStart::kHead};
  }
  const auto may_be = [&](std::string_view mark) { return may_become(text, mark); };
  const bool unknown =
      std::ranges::any_of(begins, may_be) || std::ranges::any_of(syntax.ends, may_be);
  return {unknown ? HeadStart::kUnknown : HeadStart::kNone};
}

FoundMessageEnd find_message_end(const MessageSyntax& syntax, std::string_view text) {
  // All of these marks begin alike.
  const char first = syntax.start.front();
  for (size_t at = text.find(first); at != std::string_view::npos; at = text.find(first, at + 1)) {
    const std::string_view rest = text.substr(at);
    const auto is_there = [&](std::string_view mark) {
      return !mark.empty() && rest.starts_with(mark);
    };
    const auto may_be = [&](std::string_view mark) { return may_become(rest, mark); };
    if (is_there(syntax.start) || std::ranges::any_of(syntax.ends, is_there)) return {true, at};
    if (may_be(syntax.start) || std::ranges::any_of(syntax.ends, may_be)) return {false, at};
  }
  return {false, text.size()};
}

}  // namespace lockstep
