#include "tests/server/http/test_server.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "engine/base/check.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kPatience{60};

void send_text(HttpResponse& response, std::string text) {
  response.send(200, "text/plain", std::move(text));
}

void answer_in_parts(HttpResponse& response) {
  response.start_stream(200, "text/event-stream");
  for (const char* part : {"one", "two", "three"}) response.write(part);
}

std::string what_is_seen(const HttpRequest& request) {
  return request.path + "|" + request.query + "|" + std::string(request.header("x-test"));
}

}  // namespace

void Signal::give() {
  const std::lock_guard lock(mutex_);
  is_given_ = true;
  changed_.notify_all();
}

bool Signal::wait() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [this] { return is_given_; });
}

TestServer::TestServer(HttpLimits limits, const std::function<void(HttpOptions&)>& change) {
  HttpOptions options;
  options.port = 0;
  options.limits = limits;
  options.error_body = [](std::string_view path, int status, std::string_view message) {
    return fmt::format("{} {} at {}", status, message, path);
  };
  options.on_finished = [this](const HttpRecord& record) {
    const std::lock_guard lock(records_mutex_);
    records_.push_back({std::string(record.method), std::string(record.route),
                        std::string(record.request_id), std::string(record.principal),
                        record.status, record.client_gone, record.note});
  };
  if (change) change(options);
  auto bound = HttpServer::bind(std::move(options), routes());
  CHECK(bound.has_value(), "{}", bound.error().message);
  server_ = std::move(*bound);
  server_->start();
}

TestServer::~TestServer() {
  unblock.give();
  server_->stop();
}

std::vector<HttpRoute> TestServer::routes() {
  std::vector<HttpRoute> routes;
  const auto add = [&](std::string method, std::string pattern, HttpHandler handler,
                       bool always = false) {
    routes.push_back({std::move(method), std::move(pattern),
                      [this, handler](const HttpRequest& request, HttpResponse& response) {
                        ++handled;
                        handler(request, response);
                      },
                      always});
  };
  using Request = const HttpRequest&;
  using Response = HttpResponse&;
  add("GET", "/hello", [](Request, Response response) { send_text(response, "hello"); });
  add("POST", "/echo",
      [](Request request, Response response) { send_text(response, request.body); });
  add("POST", "/size", [](Request request, Response response) {
    send_text(response, std::to_string(request.body.size()));
  });
  add("POST", "/queue", [](Request request, Response response) {
    send_text(response, std::to_string(request.body.size()));
  });
  routes.back().busy = [this](const std::string&) -> std::optional<HttpRefusal> {
    if (!is_busy) return std::nullopt;
    return HttpRefusal{503, "busy", {{"Retry-After", "7"}}, "the route's own words"};
  };
  add("GET", "/who",
      [](Request request, Response response) { send_text(response, request.principal); });
  add("POST", "/tenant",
      [](Request request, Response response) { send_text(response, request.tenant); });
  routes.back().busy = [](const std::string& tenant) -> std::optional<HttpRefusal> {
    if (tenant != "refused") return std::nullopt;
    return HttpRefusal{503, "busy", {}};
  };
  add("GET", "/models/:id", [](Request request, Response response) {
    send_text(response, request.path_parameters.at("id"));
  });
  add("GET", "/request",
      [](Request request, Response response) { send_text(response, what_is_seen(request)); });
  add("GET", "/stream", [](Request, Response response) { answer_in_parts(response); });
  add("GET", "/throw", [](Request, Response) { throw std::runtime_error("on purpose"); });
  add("GET", "/note", [](Request request, Response response) {
    response.set_note(request.path);
    send_text(response, "noted");
  });
  add("GET", "/silent", [](Request, Response) {});
  add("GET", "/block", [this](Request, Response response) { block(response); });
  add("POST", "/release", [this](Request request, Response response) {
    response.release_body(0);
    EXPECT_EQ(request.body, "");
    block(response);
  });
  add("GET", "/guard", [this](Request, Response response) { guard(response); });
  add("GET", "/endless", [this](Request, Response response) { write_endlessly(response); });
  add(
      "GET", "/health", [](Request, Response response) { send_text(response, "healthy"); }, true);
  return routes;
}

void TestServer::block(HttpResponse& response) {
  response.on_client_gone([this] {
    ++left;
    client_left.give();
    unblock.give();
  });
  blocked.give();
  EXPECT_TRUE(unblock.wait());
  was_gone_in_handler = response.client_gone();
  if (!response.client_gone()) send_text(response, "unblocked");
}

void TestServer::guard(HttpResponse& response) {
  const auto is_here = std::make_shared<std::atomic<bool>>(true);
  response.on_client_gone([this, is_here] {
    std::this_thread::yield();
    if (!*is_here) ++late;
  });
  if (handled % 2 == 0) send_text(response, "guarded");
  response.on_client_gone({});
  *is_here = false;
}

void TestServer::write_endlessly(HttpResponse& response) {
  response.start_stream(200, "text/event-stream");
  while (response.write(std::string(16 * 1024, 'x'))) {
  }
  was_gone_in_handler = response.client_gone();
  write_failed.give();
}

std::vector<SeenRecord> TestServer::records() {
  const std::lock_guard lock(records_mutex_);
  return records_;
}

std::optional<RawResponse> TestServer::get(const std::string& path) {
  RawClient client(port());
  client.send(request_text("GET", path));
  return client.receive();
}

std::string request_text(const std::string& method, const std::string& path,
                         const std::string& lines, const std::string& body) {
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + lines;
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

}  // namespace lockstep
