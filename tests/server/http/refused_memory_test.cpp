// If the machine refuses memory, or to watch another descriptor, one client or request ends; the
// server goes on. Every allocation of the server's threads is refused in turn.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "tests/refusals.h"
#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

using refusals::allocations_left;
using refusals::is_exempt;
using refusals::kNever;
using refusals::refused;
using refusals::refuses_all;
using refusals::refuses_watches;

// Refuses one allocation of each number while `requests` are sent over a connection, until none is
// refused any more; after each the server serves the next client.
void refuse_each(TestServer& server, const std::string& requests, int status) {
  constexpr int64_t kMost = 20'000;
  for (int64_t number = 0; number < kMost; ++number) {
    const int64_t before = refused;
    allocations_left = number;
    {
      RawClient client(server.port());
      client.send(requests);
      const auto answer = client.receive();
      client.shut_sending();
      while (client.receive()) {  // all that follows from the requests is done at the end
      }
      allocations_left = kNever;
      if (answer && refused > before) {
        EXPECT_TRUE(answer->status == status || answer->status == 503) << answer->status;
      } else if (answer) {
        EXPECT_EQ(answer->status, status);
      }
    }
    const auto next = server.get("/hello");
    ASSERT_TRUE(next.has_value()) << "after allocation " << number << " of " << requests;
    ASSERT_EQ(next->status, 200) << "after allocation " << number << " of " << requests;
    if (refused == before) {
      EXPECT_GT(number, 5);
      return;
    }
  }
  FAIL() << "more than " << kMost << " allocations";
}

class RefusedMemory : public testing::Test {
 protected:
  RefusedMemory() {
    is_exempt = true;
    spdlog::default_logger_raw();  // which a daemon has made long before memory is refused
  }
  ~RefusedMemory() override {
    allocations_left = kNever;
    refuses_all = refuses_watches = false;
  }
};

TEST_F(RefusedMemory, costs_one_request_of_any_kind) {
  TestServer server;
  struct Case {
    std::string requests;
    int status = 200;
  };
  const std::vector<Case> cases = {
      {request_text("GET", "/hello"), 200},
      {request_text("GET", "/hello", "Host: a\r\n"), 400},
      {request_text("GET", "/nowhere"), 404},
      {request_text("GET", "/request?a=b", "x-test: a value that is longer than a short one\r\n")},
      {request_text("POST", "/echo", "", std::string(100'000, 'b')), 200},
      {request_text("POST", "/echo", "Transfer-Encoding: chunked\r\n") + "5\r\nhello\r\n0\r\n\r\n",
       200},
      {request_text("GET", "/stream"), 200},
      {request_text("GET", "/throw"), 500},
      {request_text("GET", "/hello") + request_text("GET", "/hello"), 200},
  };
  for (const Case& one : cases) refuse_each(server, one.requests, one.status);
}

// All of them at once, for as long as a client is there: it gets the answer that was made before.
TEST_F(RefusedMemory, is_said_with_503_though_nothing_is_given) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/hello"));
  ASSERT_EQ(client.receive()->status, 200);
  refuses_all = true;
  client.send(request_text("GET", "/hello"));
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 503);
  EXPECT_TRUE(answer->headers.contains("retry-after"));
  EXPECT_TRUE(client.is_ended());
  RawClient another(server.port());
  EXPECT_TRUE(another.is_ended());
  refuses_all = false;
  EXPECT_GE(server.rejections(HttpRejection::kMemory), 2U);
  EXPECT_EQ(server.get("/hello")->status, 200);
}

TEST_F(RefusedMemory, a_client_that_cannot_be_watched_is_closed_alone) {
  TestServer server;
  RawClient before(server.port());
  before.send(request_text("GET", "/hello"));
  EXPECT_EQ(before.receive()->status, 200);
  refuses_watches = true;
  RawClient client(server.port());
  EXPECT_TRUE(client.is_ended());
  refuses_watches = false;
  before.send(request_text("GET", "/hello"));
  EXPECT_EQ(before.receive()->status, 200);
  EXPECT_EQ(server.get("/hello")->status, 200);
}

TEST_F(RefusedMemory, a_json_value_goes_without_any) {
  std::string text = R"({"a":[1,"a text that is longer than a short one",{"b":[[],{}]}],"c":{}})";
  for (int depth = 0; depth < 50; ++depth) text = R"({"k":[)" + text + R"(,2]})";
  auto value = parse_json(text, {.depth = 1000});
  ASSERT_TRUE(value.has_value());
  const int64_t before = refused;
  is_exempt = false;
  refuses_all = true;
  *value = nullptr;
  refuses_all = false;
  is_exempt = true;
  EXPECT_EQ(refused, before);
}

TEST_F(RefusedMemory, reading_json_throws_and_nothing_else) {
  const std::string text =
      R"({"list":[{"role":"user","content":"a text that is longer than a short one"}],"n":[1,2]})";
  for (int64_t number = 0;; ++number) {
    const int64_t before = refused;
    bool has_thrown = false;
    is_exempt = false;
    allocations_left = number;
    try {
      const auto value = parse_json(text);
    } catch (const std::bad_alloc&) {
      has_thrown = true;
    }
    allocations_left = kNever;
    is_exempt = true;
    if (refused == before) break;
    EXPECT_TRUE(has_thrown) << number;
  }
}

}  // namespace
}  // namespace lockstep
