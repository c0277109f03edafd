// The page's files as they were when the program was built; embed.cmake writes the definition.
#pragma once

#include <span>
#include <string_view>

namespace lockstep {

struct EmbeddedFile {
  std::string_view name;        // "app.js"
  std::string_view entity_tag;  // of these bytes, in its quotes
  std::string_view bytes;
};

std::span<const EmbeddedFile> embedded_files();

}  // namespace lockstep
