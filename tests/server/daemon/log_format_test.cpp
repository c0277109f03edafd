#include "server/daemon/log_format.h"

#include <gmock/gmock.h>
#include <spdlog/details/log_msg.h>

#include <string>
#include <vector>

#include "engine/base/json.h"
#include "server/api/common/generation_note.h"
#include "server/daemon/request_log.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

constexpr LogFormat kFormats[] = {LogFormat::kText, LogFormat::kLogfmt, LogFormat::kJson};

std::string line(LogFormat format, std::string_view logger, std::string_view message) {
  spdlog::memory_buf_t buffer;
  make_log_formatter(format)->format(
      spdlog::details::log_msg(spdlog::string_view_t(logger.data(), logger.size()),
                               spdlog::level::warn,
                               spdlog::string_view_t(message.data(), message.size())),
      buffer);
  return {buffer.data(), buffer.size()};
}

const std::vector<std::string> kNasty = {
    "two\nlines",
    "\r\n\r\n",
    "quote\" level=critical",
    "back\\slash",
    "\x1b[31mred",
    std::string(1, '\0'),
    "\x7f",
    "a=b c=d",
    "\xc2\x85 and \u2028",
    "not utf-8: \xff\xfe",
    "",
    "\"}\n{\"level\":\"error\"",
};

TEST(LogFormat, whatever_is_in_a_message_it_stays_one_line_of_printable_ascii) {
  for (const LogFormat format : kFormats) {
    for (const std::string& text : kNasty) {
      for (const std::string& made :
           {line(format, "lockstepd", text),
            line(format, kFieldsLogger, LogFields(format, text).add("key", text).text())}) {
        ASSERT_TRUE(made.ends_with('\n'));
        for (const char letter : made.substr(0, made.size() - 1)) {
          EXPECT_TRUE(letter >= 0x20 && letter < 0x7f) << made;
        }
      }
    }
  }
}

TEST(LogFormat, json_gives_back_what_was_logged) {
  for (const std::string& text : kNasty) {
    const auto read = nlohmann::json::parse(
        line(LogFormat::kJson, kFieldsLogger,
             LogFields(LogFormat::kJson, "request").add("id", text).add("status", 200).text()));
    EXPECT_EQ(read["level"], "warn");
    EXPECT_EQ(read["msg"], "request");
    EXPECT_EQ(read["status"], 200);
    if (text.find('\xff') == text.npos) {
      EXPECT_EQ(read["id"], text);
    }
    EXPECT_EQ(read.size(), 5U);
  }
}

TEST(LogFormat, logfmt_quotes_what_could_be_taken_for_something_else) {
  const auto value = [](std::string_view text) {
    return LogFields(LogFormat::kLogfmt, "m").add("k", text).text();
  };
  EXPECT_EQ(value("plain-1.5/x"), "msg=m k=plain-1.5/x");
  EXPECT_EQ(value("a b"), R"(msg=m k="a b")");
  EXPECT_EQ(value("a=b"), R"(msg=m k="a=b")");
  EXPECT_EQ(value(""), R"(msg=m k="")");
  EXPECT_EQ(value("a\"b\\c\n\x1b"), R"(msg=m k="a\"b\\c\n\u001b")");
}

TEST(LogFormat, a_line_starts_with_time_and_level) {
  EXPECT_THAT(line(LogFormat::kLogfmt, "x", "two words"),
              MatchesRegex("time=....-..-..T..:..:......Z level=warn msg=\"two words\"\n"));
  EXPECT_THAT(line(LogFormat::kText, "x", "two words"),
              MatchesRegex("....-..-..T..:..:......Z warn two words\n"));
}

HttpRecord record_of(std::string_view id, std::string_view path) {
  HttpRecord record;
  record.method = "POST";
  record.route = "/v1/completions";
  record.path = path;
  record.request_id = id;
  record.remote_address = "127.0.0.1";
  record.principal = "team a";
  record.status = 200;
  record.seconds = 0.25;
  record.sent_bytes = 17;
  return record;
}

TEST(RequestLog, a_request_is_one_line_with_all_that_is_known_of_it) {
  GenerationNote note;
  note.prompt_tokens = 5;
  note.cached_tokens = 4;
  note.generated_tokens = 3;
  note.finish = "stop";
  note.queue_seconds = 0.001;
  note.first_token_seconds = 0.02;
  note.per_token_seconds = 0.003;
  HttpRecord record = record_of("r1", "/v1/completions");
  record.note = note;
  EXPECT_EQ(request_fields(LogFormat::kLogfmt, record).text(),
            "msg=request id=r1 key=\"team a\" client=127.0.0.1 method=POST path=/v1/completions "
            "status=200 prompt_tokens=5 cached_tokens=4 generated_tokens=3 finish=stop "
            "queue_seconds=0.001000 first_token_seconds=0.020000 per_token_seconds=0.003000 "
            "sent_bytes=17 seconds=0.250000");
  const auto read =
      nlohmann::json::parse("{" + request_fields(LogFormat::kJson, record).text() + "}");
  EXPECT_EQ(read["key"], "team a");
  EXPECT_EQ(read["first_token_seconds"], 0.02);
}

TEST(RequestLog, a_client_cannot_forge_fields) {
  const std::string forged = "x\" status=500 id=\"y\ntime=now level=info msg=request";
  const std::string text = request_fields(LogFormat::kLogfmt, record_of(forged, forged)).text();
  EXPECT_THAT(text, HasSubstr(R"(id="x\" status=500 id=\"y\ntime=now level=info msg=request")"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace lockstep
