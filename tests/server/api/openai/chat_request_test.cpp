#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/openai/completion_request.h"

namespace lockstep {
namespace {

constexpr RequestLimits kLimits{
    .vocabulary_size = 100, .context_tokens = 64, .choices_max = 128, .requests_max = 100};
constexpr std::string_view kHello = R"("messages":[{"role":"user","content":"hello"}])";

ApiResult<ChatRequest> parse(std::string_view fields) {
  return parse_chat(*parse_json(fmt::format(R"({{"model":"m",{}}})", fields)), kLimits);
}

ChatRequest parsed(std::string_view fields) {
  auto chat = parse(fields);
  EXPECT_TRUE(chat) << fields << ": " << chat.error().message;
  return chat ? std::move(*chat) : ChatRequest();
}

ChatRequest with_hello(std::string_view fields) {
  return parsed(fmt::format("{},{}", kHello, fields));
}

std::string refused(std::string_view fields) {
  const auto chat = parse(fields);
  return chat ? "" : chat.error().parameter.value_or("?");
}

std::string refused_with_hello(std::string_view fields) {
  return refused(fmt::format("{},{}", kHello, fields));
}

TEST(ChatRequest, the_template_gets_plain_messages_and_what_transformers_gives_it) {
  const ChatRequest chat = parsed(
      R"("messages":[{"role":"developer","content":"be brief"},
                     {"role":"user","content":[{"type":"text","text":"a"},
                                               {"type":"text","text":"b"}],"name":"me"},
                     {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
                      "function":{"name":"f","arguments":"{\"x\": 1}"}}]},
                     {"role":"tool","content":"c","tool_call_id":"1"}])");
  EXPECT_EQ(to_text(chat.variables),
            R"({"messages":[{"role":"system","content":"be brief"},)"
            R"({"role":"user","content":"ab","name":"me"},)"
            R"({"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function",)"
            R"("function":{"name":"f","arguments":{"x":1}}}]},)"
            R"({"role":"tool","content":"c","tool_call_id":"1"}],)"
            R"("tools":null,"documents":null,"add_generation_prompt":true})");
}

TEST(ChatRequest, extra_variables_are_passed_on_but_for_the_servers_own) {
  const ChatRequest chat =
      with_hello(R"("add_generation_prompt":false,"chat_template_kwargs":{"thinking":true})");
  EXPECT_EQ(chat.variables["thinking"], true);
  EXPECT_EQ(chat.variables["add_generation_prompt"], false);
  for (const std::string_view name :
       {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}) {
    EXPECT_EQ(refused_with_hello(fmt::format(R"("chat_template_kwargs":{{"{}":1}})", name)),
              "chat_template_kwargs")
        << name;
  }
}

TEST(ChatRequest, messages_that_are_not_messages_are_refused_by_their_place) {
  EXPECT_EQ(refused(R"("n":1)"), "messages");
  EXPECT_EQ(refused(R"("messages":null)"), "messages");
  EXPECT_EQ(refused(R"("messages":[])"), "messages");
  EXPECT_EQ(refused(R"("messages":"hello")"), "messages");
  EXPECT_EQ(refused(R"("messages":["hello"])"), "messages[0]");
  EXPECT_EQ(refused(R"("messages":[{"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(refused(R"("messages":[{"role":"robot","content":"a"}])"), "messages[0].role");
  EXPECT_EQ(refused(R"("messages":[{"role":1,"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(refused(R"("messages":[{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(refused(R"("messages":[{"role":"user","content":null}])"), "messages[0].content");
  EXPECT_EQ(refused(R"("messages":[{"role":"user","content":1}])"), "messages[0].content");
  EXPECT_EQ(refused(R"("messages":[{"role":"user","content":"a"},{"role":"user","content":{}}])"),
            "messages[1].content");
  EXPECT_EQ(refused(R"("messages":[{"role":"user","content":["a"]}])"), "messages[0].content");
  EXPECT_EQ(refused(R"("messages":[{"role":"user","content":[{"type":"image_url",
                                    "image_url":{"url":"data:,"}}]}])"),
            "messages[0].content");
  EXPECT_EQ(refused(R"("messages":[{"role":"assistant","content":null}])"), "messages[0].content");
}

TEST(ChatRequest, both_names_of_the_length_are_taken_and_the_newer_wins) {
  EXPECT_EQ(with_hello(R"("n":1)").parameters.max_tokens, std::nullopt);
  EXPECT_EQ(with_hello(R"("max_tokens":5)").parameters.max_tokens, 5U);
  EXPECT_EQ(with_hello(R"("max_completion_tokens":6)").parameters.max_tokens, 6U);
  EXPECT_EQ(with_hello(R"("max_tokens":5,"max_completion_tokens":6)").parameters.max_tokens, 6U);
  EXPECT_EQ(refused_with_hello(R"("max_tokens":0)"), "max_tokens");
  EXPECT_EQ(refused_with_hello(R"("max_completion_tokens":-1)"), "max_completion_tokens");
}

TEST(ChatRequest, logprobs_are_a_boolean_and_a_number_of_alternatives) {
  EXPECT_EQ(with_hello(R"("logprobs":false)").parameters.request.logprobs, std::nullopt);
  EXPECT_EQ(with_hello(R"("logprobs":true)").parameters.request.logprobs, 0U);
  EXPECT_EQ(with_hello(R"("logprobs":true,"top_logprobs":20)").parameters.request.logprobs, 20U);
  EXPECT_EQ(refused_with_hello(R"("logprobs":1)"), "logprobs");
  EXPECT_EQ(refused_with_hello(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs");
  EXPECT_EQ(refused_with_hello(R"("top_logprobs":1)"), "top_logprobs");
}

TEST(ChatRequest, features_that_are_not_there_yet_are_refused_never_ignored) {
  EXPECT_EQ(refused_with_hello(R"("response_format":{"type":"structural_tag"})"),
            "response_format.type");
  EXPECT_EQ(refused_with_hello(R"("functions":[{"name":"f"}])"), "functions");
  EXPECT_EQ(refused_with_hello(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(refused_with_hello(R"("audio":{"voice":"x","format":"wav"})"), "audio");
  EXPECT_EQ(refused_with_hello(R"("modalities":["text","audio"])"), "modalities");
  EXPECT_EQ(refused_with_hello(R"("continue_final_message":true)"), "continue_final_message");
  const auto going_on = parsed(R"("continue_final_message":true,"messages":[
      {"role":"user","content":"a"},{"role":"assistant","content":"b"}])");
  EXPECT_TRUE(going_on.continues_last);
  EXPECT_EQ(going_on.variables["add_generation_prompt"], false);
}

TEST(ChatRequest, a_prediction_is_a_text_or_parts_of_it) {
  EXPECT_EQ(with_hello(R"("prediction":{"type":"content","content":"as before"})").prediction,
            "as before");
  const ChatRequest parts = with_hello(R"("prediction":{"type":"content","content":[
      {"type":"text","text":"as "},{"type":"text","text":"before"}]})");
  EXPECT_EQ(parts.prediction, "as before");
  EXPECT_EQ(with_hello(R"("prediction":null)").prediction, "");
  EXPECT_EQ(refused_with_hello(R"("prediction":"as before")"), "prediction");
  EXPECT_EQ(refused_with_hello(R"("prediction":{"type":"text","content":"a"})"), "prediction.type");
  EXPECT_EQ(refused_with_hello(R"("prediction":{"type":"content"})"), "prediction.content");
  EXPECT_EQ(refused_with_hello(R"("prediction":{"type":"content","content":5})"),
            "prediction.content");
}

TEST(ChatRequest, speculation_can_be_switched_off) {
  EXPECT_TRUE(with_hello(R"("n":1)").parameters.request.speculation);
  EXPECT_FALSE(with_hello(R"("speculation":false)").parameters.request.speculation);
  EXPECT_EQ(refused_with_hello(R"("speculation":"no")"), "speculation");
}

TEST(ChatRequest, how_much_to_reason_is_told_to_the_template_and_bounded) {
  EXPECT_EQ(with_hello(R"("reasoning_budget_tokens":7)").reasoning_tokens, 7U);
  EXPECT_EQ(with_hello(R"("thinking_budget_tokens":8)").reasoning_tokens, 8U);
  for (const auto* const none :
       {R"("n":1)", R"("reasoning_budget_tokens":-1)", R"("reasoning_budget_tokens":null)"}) {
    const ChatRequest chat = with_hello(none);
    EXPECT_FALSE(chat.reasoning_tokens) << none;
    EXPECT_FALSE(chat.variables.contains("enable_thinking")) << none;
  }
  for (const auto* const off : {R"("reasoning_budget_tokens":0)", R"("reasoning_effort":"none")"}) {
    const ChatRequest chat = with_hello(off);
    EXPECT_EQ(chat.variables["enable_thinking"], false) << off;
    EXPECT_EQ(chat.variables["thinking"], false) << off;
  }
  const ChatRequest high = with_hello(R"("reasoning_effort":"high")");
  EXPECT_EQ(high.variables["enable_thinking"], true);
  EXPECT_EQ(high.variables["reasoning_effort"], "high");
  // Variables that the request gives the template itself go before.
  const ChatRequest own =
      with_hello(R"("reasoning_effort":"high","chat_template_kwargs":{"enable_thinking":false})");
  EXPECT_EQ(own.variables["enable_thinking"], false);
  EXPECT_EQ(refused_with_hello(R"("reasoning_budget_tokens":-2)"), "reasoning_budget_tokens");
  EXPECT_EQ(refused_with_hello(R"("thinking_budget_tokens":"a")"), "thinking_budget_tokens");
}

TEST(ChatRequest, the_same_fields_are_taken_where_they_ask_for_nothing) {
  with_hello(R"("response_format":{"type":"text"},"modalities":["text"],"tool_choice":"none",
                "tools":[{"type":"function","function":{"name":"f"}}])");
  with_hello(R"("tools":[],"tool_choice":"auto","audio":null,"function_call":"none")");
  with_hello(R"("reasoning_effort":"low","store":false,"metadata":{},"service_tier":"auto")");
}

}  // namespace
}  // namespace lockstep
