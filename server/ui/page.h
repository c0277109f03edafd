// The page at "/": a chat and a live view of the machine, in files that the program carries.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "server/http/http_route.h"

namespace lockstep {

// Adds the page's routes: "/" and "/ui/:name". They hold nothing secret and read nothing of the
// request but If-None-Match, so they need no key; what the page shows it asks the API for.
void add_page_routes(std::vector<HttpRoute>& routes);

// One of the page's files as it was when the program was built.
struct EmbeddedFile {
  std::string_view name;        // "app.js"
  std::string_view entity_tag;  // of these bytes, in its quotes
  std::string_view bytes;
};

// embed.cmake writes the definition.
std::span<const EmbeddedFile> embedded_files();

}  // namespace lockstep
