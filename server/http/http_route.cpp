#include "server/http/http_route.h"

#include <set>

#include "server/http/request_head.h"

namespace lockstep {
namespace {

std::vector<std::string> split_segments(std::string_view path) {
  std::vector<std::string> segments;
  while (!path.empty()) {
    path.remove_prefix(1);  // the '/'
    const size_t end = std::min(path.find('/'), path.size());
    segments.emplace_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  return segments;
}

// Whether the pattern ends with ":name*", which takes all segments that are left: "org/model".
bool takes_rest(const std::vector<std::string>& pattern) {
  return !pattern.empty() && pattern.back().starts_with(':') && pattern.back().ends_with('*');
}

std::string name_of(std::string_view segment) {
  if (segment.ends_with('*')) segment.remove_suffix(1);
  return std::string(segment.substr(1));
}

// Fills `parameters` from the pattern's ":name" segments; false if the path does not fit.
bool fits(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
          std::map<std::string, std::string>& parameters) {
  if (path.size() < pattern.size()) return false;
  if (path.size() > pattern.size() && !takes_rest(pattern)) return false;
  parameters.clear();
  for (size_t index = 0; index < pattern.size(); ++index) {
    if (pattern[index].starts_with(':')) {
      if (path[index].empty()) return false;
      parameters[name_of(pattern[index])] = path[index];
    } else if (pattern[index] != path[index]) {
      return false;
    }
  }
  for (size_t index = pattern.size(); index < path.size(); ++index) {
    if (path[index].empty()) return false;
    parameters[name_of(pattern.back())] += "/" + path[index];
  }
  return true;
}

bool serves(const HttpRoute& route, std::string_view method) {
  return route.method == method || (method == "HEAD" && route.method == "GET");
}

}  // namespace

RouteTable::RouteTable(std::vector<HttpRoute> routes) {
  for (HttpRoute& route : routes) {
    auto segments = split_segments(route.pattern);
    // In logs and metrics it is one route, however many segments the name takes.
    if (takes_rest(segments)) route.pattern.pop_back();
    entries_.push_back({std::move(route), std::move(segments)});
  }
}

RouteMatch RouteTable::match(std::string_view method, std::string_view raw_path) const {
  RouteMatch result;
  std::vector<std::string> segments = split_segments(raw_path);
  for (std::string& segment : segments) {
    auto decoded = percent_decode(segment);
    if (!decoded) return result;
    segment = std::move(*decoded);
  }
  std::set<std::string> methods;
  std::map<std::string, std::string> parameters;
  for (const Entry& entry : entries_) {
    if (!fits(entry.segments, segments, parameters)) continue;
    if (serves(entry.route, method)) {
      result.route = &entry.route;
      result.parameters = std::move(parameters);
      return result;
    }
    methods.insert(entry.route.method);
    if (entry.route.method == "GET") methods.insert("HEAD");
  }
  for (const std::string& known : methods) {
    result.allow += (result.allow.empty() ? "" : ", ") + known;
  }
  return result;
}

}  // namespace lockstep
