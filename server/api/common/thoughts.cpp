#include "server/api/common/thoughts.h"

namespace lockstep {
namespace {

// What there is of the prompt up to white space at its end.
size_t said_bytes(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(" \n\t\r");
  return last == std::string_view::npos ? 0 : last + 1;
}

}  // namespace

bool ends_in_thoughts(std::string_view prompt) {
  return prompt.substr(0, said_bytes(prompt)).ends_with(kThoughtsOpen);
}

bool close_thoughts(TracedText& prompt) {
  if (!ends_in_thoughts(prompt.text)) return false;
  prompt.truncate(said_bytes(prompt.text));
  for (const std::string_view part :
       {std::string_view("\n\n"), kThoughtsClose, std::string_view("\n\n")}) {
    prompt.append(part, false);
  }
  return true;
}

}  // namespace lockstep
