#include "server/ui/page.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kIndex = "index.html";

// Ending of a file's name -> its type.
constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
    {".html", "text/html; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".svg", "image/svg+xml"},
};

// Nothing but the page's own files runs or is shown, it talks to this server alone, and no text
// becomes markup: the browser refuses the operations that could make it so.
constexpr std::pair<const char*, const char*> kHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
     "require-trusted-types-for 'script'; trusted-types 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Permissions-Policy", "camera=(), geolocation=(), microphone=()"},
    // Kept, but asked for again each time: a new program brings a new page at once.
    {"Cache-Control", "no-cache"},
};

std::string_view type_of(std::string_view name) {
  for (const auto& [ending, type] : kTypes) {
    if (name.ends_with(ending)) return type;
  }
  return "application/octet-stream";
}

// Whether the client has these bytes: If-None-Match is "*" or a list of tags, weak or not.
bool is_known(std::string_view if_none_match, std::string_view tag) {
  return if_none_match == "*" || if_none_match.find(tag) != std::string_view::npos;
}

void send_file(std::string_view name, const HttpRequest& request, HttpResponse& response) {
  for (const auto& [field, value] : kHeaders) response.set_header(field, value);
  const auto files = embedded_files();
  const auto file = std::ranges::find(files, name, &EmbeddedFile::name);
  if (file == files.end()) {
    response.send(404, "text/plain; charset=utf-8", "The page has no such file.\n");
    return;
  }
  response.set_header("ETag", std::string(file->entity_tag));
  if (is_known(request.header("if-none-match"), file->entity_tag)) {
    response.send(304, type_of(name), "");
  } else {
    response.send(200, type_of(name), std::string(file->bytes));
  }
}

}  // namespace

void add_page_routes(std::vector<HttpRoute>& routes) {
  // Always: it is wanted most when the machine is busy, and copies bytes that are there.
  constexpr bool kAlways = true;
  // A key is typed into the page, so that the page must come first.
  constexpr bool kWithoutKey = true;
  routes.push_back({"GET", "/",
                    [](const HttpRequest& request, HttpResponse& response) {
                      send_file(kIndex, request, response);
                    },
                    kAlways, kWithoutKey});
  routes.push_back({"GET", "/ui/:name",
                    [](const HttpRequest& request, HttpResponse& response) {
                      send_file(request.path_parameters.at("name"), request, response);
                    },
                    kAlways, kWithoutKey});
}

}  // namespace lockstep
