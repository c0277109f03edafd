// The dialect of an error, by the path that was asked.
#include <gtest/gtest.h>

#include <any>
#include <functional>
#include <map>

#include "server/api/routes.h"

namespace lockstep {
namespace {

// Keeps what is sent.
class SentAnswer final : public HttpResponse {
 public:
  void set_header(std::string name, std::string value) override {
    headers.emplace(std::move(name), std::move(value));
  }
  void release_body(size_t) override {}
  void send(int sent_status, std::string_view, std::string sent_body) override {
    status = sent_status;
    body = std::move(sent_body);
  }
  bool start_stream(int, std::string_view) override { return false; }
  bool write(std::string) override { return false; }
  bool client_gone() const override { return false; }
  void on_client_gone(std::function<void()>) override {}
  void cut_too_slow() override {}
  void set_note(std::any) override {}

  std::map<std::string, std::string> headers;
  int status = 0;
  std::string body;
};

const ApiError kFull = not_now("queue_full", "The queue is full", 7);
constexpr const char* kOpenAi =
    R"({"error":{"message":"The queue is full","type":"server_error","param":null,)"
    R"("code":"queue_full"}})";
constexpr const char* kAnthropic =
    R"({"type":"error","error":{"type":"overloaded_error","message":"The queue is full"}})";

TEST(Dialect, messages_and_all_below_it_are_anthropics_and_nothing_beside_it) {
  for (const char* const path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages/x"}) {
    EXPECT_EQ(to_text(error_object_of(path)(kFull)), kAnthropic) << path;
  }
  for (const char* const path : {"", "/v1/chat/completions", "/v1/messagesx", "/v1", "/health"}) {
    EXPECT_EQ(to_text(error_object_of(path)(kFull)), kOpenAi) << path;
  }
}

TEST(Dialect, an_error_is_sent_as_it_is_refused) {
  for (const char* const path : {"/v1/messages", "/v1/completions"}) {
    SentAnswer sent;
    send_error(sent, kFull, error_object_of(path));
    const HttpRefusal refusal = to_http_refusal(kFull, error_object_of(path));
    EXPECT_EQ(sent.status, 503);
    EXPECT_EQ(refusal.status, 503);
    EXPECT_EQ(sent.body, refusal.body);
    EXPECT_EQ(sent.headers.at("Retry-After"), "7");
    EXPECT_EQ(refusal.headers.find("Retry-After")->second, "7");
  }
}

TEST(Dialect, an_error_without_a_time_to_come_again_names_none) {
  SentAnswer sent;
  send_error(sent, bad_parameter("model", "no"), error_object_of("/v1/completions"));
  EXPECT_EQ(sent.status, 400);
  EXPECT_TRUE(sent.headers.empty());
  EXPECT_EQ(sent.body, R"({"error":{"message":"no","type":"invalid_request_error",)"
                       R"("param":"model","code":null}})");
}

TEST(Dialect, the_http_layers_own_errors_have_a_code_for_their_status) {
  EXPECT_EQ(http_error_body("/x", 404, "none"),
            R"({"error":{"message":"none","type":"invalid_request_error","param":null,)"
            R"("code":"not_found"}})");
  EXPECT_EQ(http_error_body("/v1/messages/x", 404, "none"),
            R"({"type":"error","error":{"type":"not_found_error","message":"none"}})");
}

}  // namespace
}  // namespace lockstep
