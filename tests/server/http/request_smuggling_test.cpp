// Requests that two parties on the way could read differently: exactly one answer each, a refusal,
// and nothing behind it is taken for a request.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

constexpr const char* kSmuggled = "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n";

struct Case {
  const char* what;
  std::string sent;
  int status;
};

std::string post(const std::string& lines, const std::string& body) {
  return "POST /echo HTTP/1.1\r\nHost: test\r\n" + lines + "\r\n" + body;
}

std::string chunked(const std::string& body) {
  return post("Transfer-Encoding: chunked\r\n", body);
}

std::string with_length(const std::string& value) {
  return post("Content-Length: " + value + "\r\n", "12345");
}

void expect_one_refusal(const std::vector<Case>& cases) {
  TestServer server;
  for (const Case& each : cases) {
    RawClient client(server.port());
    client.send(each.sent + kSmuggled);
    const auto response = client.receive();
    ASSERT_TRUE(response) << each.what;
    EXPECT_EQ(response->status, each.status) << each.what << ": " << response->body;
    EXPECT_EQ(response->headers.at("connection"), "close") << each.what;
    EXPECT_EQ(response->body.substr(0, 4), std::to_string(each.status) + " ") << each.what;
    EXPECT_TRUE(client.is_ended()) << each.what;
  }
  EXPECT_EQ(server.handled, 0);
  EXPECT_EQ(server.get("/hello")->status, 200);
}

TEST(RequestSmuggling, an_ambiguous_body_length_is_refused) {
  const std::string encoding = "Transfer-Encoding: chunked\r\n";
  const std::string length = "Content-Length: 5\r\n";
  expect_one_refusal({
      {"both", post(encoding + length, "0\r\n\r\n"), 400},
      {"both, the other way round", post(length + encoding, "12345"), 400},
      {"both, length 0", post("Content-Length: 0\r\n" + encoding, "0\r\n\r\n"), 400},
      {"two equal lengths", post(length + length, "12345"), 400},
      {"two different lengths", post(length + "Content-Length: 6\r\n", "12345"), 400},
      {"two lengths in one field", with_length("5, 5"), 400},
      {"two encodings", post(encoding + encoding, "0\r\n\r\n"), 400},
      {"two encodings in one field", post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"),
       501},
      {"identity, chunked", post("Transfer-Encoding: identity, chunked\r\n", "0\r\n\r\n"), 501},
      {"gzip, chunked", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {"xchunked", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 501},
      {"empty encoding", post("Transfer-Encoding:\r\n", "0\r\n\r\n"), 501},
      {"space before the colon", post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), 400},
      {"vertical tab",
       post("Transfer-Encoding: \x0b"
            "chunked\r\n",
            "0\r\n\r\n"),
       400},
      {"encoding in HTTP/1.0",
       "POST /echo HTTP/1.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
  });
}

TEST(RequestSmuggling, a_length_that_is_not_a_plain_decimal_number_is_refused) {
  expect_one_refusal({
      {"plus", with_length("+5"), 400},
      {"minus", with_length("-1"), 400},
      {"hexadecimal", with_length("0x5"), 400},
      {"inner space", with_length("5 5"), 400},
      {"fraction", with_length("5.0"), 400},
      {"exponent", with_length("5e0"), 400},
      {"empty", with_length(""), 400},
      {"letters", with_length("five"), 400},
      {"2^64", with_length("18446744073709551616"), 413},
      {"2^64 + 5", with_length("18446744073709551621"), 413},
      {"2^32 + 5", with_length("4294967301"), 413},
      {"100 digits", with_length(std::string(100, '9')), 413},
  });
}

TEST(RequestSmuggling, malformed_chunks_are_refused) {
  expect_one_refusal({
      {"negative size", chunked("-2\r\nab\r\n0\r\n\r\n"), 400},
      {"size 2^64", chunked("10000000000000000\r\n"), 400},
      {"size 2^64 - 2", chunked("fffffffffffffffe\r\n"), 400},
      {"size 2^32 - 1", chunked("ffffffff\r\n"), 413},
      {"0x", chunked("0x2\r\nab\r\n0\r\n\r\n"), 400},
      {"plus", chunked("+2\r\nab\r\n0\r\n\r\n"), 400},
      {"empty size", chunked("\r\nab\r\n0\r\n\r\n"), 400},
      {"space before the size", chunked(" 2\r\nab\r\n0\r\n\r\n"), 400},
      {"space after the size", chunked("2 \r\nab\r\n0\r\n\r\n"), 400},
      {"extension", chunked("2;name=value\r\nab\r\n0\r\n\r\n"), 400},
      {"extension of the last chunk", chunked("2\r\nab\r\n0;x\r\n\r\n"), 400},
      {"bare LF after the size", chunked("2\nab\r\n0\r\n\r\n"), 400},
      {"bare CR after the size", chunked("2\rab\r\n0\r\n\r\n"), 400},
      {"chunk longer than its size", chunked("2\r\nabc\r\n0\r\n\r\n"), 400},
      {"chunk shorter than its size", chunked("4\r\nab\r\n0\r\n\r\n"), 400},
      {"bare LF after the data", chunked("2\r\nab\n0\r\n\r\n"), 400},
      {"trailer", chunked("2\r\nab\r\n0\r\nX-Trailer: 1\r\n\r\n"), 400},
      {"trailer that smuggles", chunked("0\r\nContent-Length: 5\r\n\r\n"), 400},
  });
}

TEST(RequestSmuggling, malformed_heads_are_refused) {
  const std::string nul(1, '\0');
  const auto get = [](const std::string& target) {
    return "GET " + target + " HTTP/1.1\r\nHost: test\r\n\r\n";
  };
  const auto field = [](const std::string& line) {
    return "GET /hello HTTP/1.1\r\nHost: test\r\n" + line + "\r\n\r\n";
  };
  expect_one_refusal({
      {"continued field", field("X-A: 1\r\n 2"), 400},
      {"continued field with a tab", field("X-A: 1\r\n\t2"), 400},
      {"continued first field", "GET /hello HTTP/1.1\r\n Host: test\r\n\r\n", 400},
      {"bare LF after the request line", "GET /hello HTTP/1.1\nHost: test\r\n\r\n", 400},
      {"bare LF in a field", field("X-A: 1\nX-B: 2"), 400},
      {"bare LF at the end", "GET /hello HTTP/1.1\r\nHost: test\r\n\n", 400},
      {"bare CR in a field", field("X-A: 1\rX-B: 2"), 400},
      {"CR CR LF", field("X-A: 1\r"), 400},
      {"NUL in a field", field("X-A: 1" + nul), 400},
      {"escape in a field", field("X-A: \x1b[2J"), 400},
      {"DEL in a field", field("X-A: \x7f"), 400},
      {"no colon", field("X-A"), 400},
      {"empty name", field(": 1"), 400},
      {"space in the name", field("X A: 1"), 400},
      {"space before the colon", field("X-A : 1"), 400},
      {"umlaut in the name", field("X-\xc3\xa4: 1"), 400},
      {"no Host", "GET /hello HTTP/1.1\r\n\r\n", 400},
      {"two Hosts", field("Host: other"), 400},
      {"%0d%0a in the path", get("/hello%0d%0aX:1"), 400},
      {"%0D%0A in the query", get("/hello?a=%0D%0AX:1"), 400},
      {"%00", get("/hello%00"), 400},
      {"%7f", get("/hello%7f"), 400},
      {"broken percent sequence", get("/hello%2"), 400},
      {"percent sequence without digits", get("/hello%zz"), 400},
      {"%u000d", get("/hello%u000d"), 400},
      {"space in the target", get("/hello /x"), 400},
      {"tab in the target", get("/hello\t"), 400},
      {"fragment", get("/hello#x"), 400},
      {"raw umlaut in the target", get("/\xc3\xa4"), 400},
      {"no path", get("hello"), 400},
      {"absolute target", get("http://test/hello"), 400},
      {"asterisk", get("*"), 400},
      {"two spaces", "GET  /hello HTTP/1.1\r\nHost: test\r\n\r\n", 400},
      {"space at the end of the request line", "GET /hello HTTP/1.1 \r\nHost: test\r\n\r\n", 400},
      {"empty line first", "\r\n", 400},
      {"space first", " GET /hello HTTP/1.1\r\n", 400},
      {"lower-case method", "get /hello HTTP/1.1\r\nHost: test\r\n\r\n", 501},
      {"unknown method", "BREW /hello HTTP/1.1\r\nHost: test\r\n\r\n", 501},
      {"method that is no token", "G{T /hello HTTP/1.1\r\nHost: test\r\n\r\n", 400},
      {"endless method", std::string(64, 'G'), 400},
  });
}

TEST(RequestSmuggling, other_protocols_and_versions_are_refused) {
  const std::string tls("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  expect_one_refusal({
      {"HTTP/0.9", "GET /hello\r\n", 400},
      {"HTTP/2.0", "GET /hello HTTP/2.0\r\nHost: test\r\n\r\n", 505},
      {"HTTP/1.2", "GET /hello HTTP/1.2\r\nHost: test\r\n\r\n", 505},
      {"HTTP/1.10", "GET /hello HTTP/1.10\r\nHost: test\r\n\r\n", 400},
      {"http/1.1", "GET /hello http/1.1\r\nHost: test\r\n\r\n", 400},
      {"preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"TLS", tls, 400},
      {"SSH", "SSH-2.0-OpenSSH_9.2\r\n", 400},
      {"SOCKS", "\x05\x01", 400},
  });
}

TEST(RequestSmuggling, the_body_of_a_get_is_not_a_request) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/models/one", "", kSmuggled));
  client.send(request_text("GET", "/models/two"));
  EXPECT_EQ(client.receive()->body, "one");
  EXPECT_EQ(client.receive()->body, "two");
  EXPECT_EQ(server.handled, 2);
}

TEST(RequestSmuggling, the_body_of_a_refused_request_is_not_a_request) {
  TestServer server;
  for (const char* path : {"/nowhere", "/hello"}) {
    RawClient client(server.port());
    client.send(request_text("POST", path, "", kSmuggled));
    const auto response = client.receive();
    EXPECT_GE(response->status, 404);
    EXPECT_EQ(response->headers.at("connection"), "close");
    EXPECT_TRUE(client.is_ended());
  }
  EXPECT_EQ(server.handled, 0);
}

}  // namespace
}  // namespace lockstep
