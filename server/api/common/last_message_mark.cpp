#include "server/api/common/last_message_mark.h"

namespace lockstep {
namespace {

constexpr std::string_view kMark = "lockstep:the-answer-goes-on-here";
// Ends the mark. A template that trims drops it; none writes such a space by itself.
constexpr char kTrimmed = '\f';
constexpr std::string_view kSpace = " \n\t\r\f\v";

}  // namespace

void mark_content_end(Json& message) {
  std::string& content = message["content"].get_ref<std::string&>();
  content += kMark;
  content += kTrimmed;
}

bool cut_at_mark(TracedText& prompt) {
  const std::string& text = prompt.text;
  const size_t mark = text.rfind(kMark);
  if (mark == std::string::npos) return false;
  const size_t behind = mark + kMark.size();
  const bool trims = behind == text.size() || text[behind] != kTrimmed;
  prompt.truncate(mark);
  if (trims) prompt.truncate(text.find_last_not_of(kSpace) + 1);
  return true;
}

}  // namespace lockstep
