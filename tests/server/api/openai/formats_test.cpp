// The words of an answer: choices, chunks and both shapes of logprobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/text/model_tokenizer.h"
#include "server/api/common/outputs.h"
#include "server/api/common/random.h"
#include "server/api/openai/chat_format.h"
#include "server/api/openai/choices.h"
#include "server/api/openai/completion_format.h"
#include "server/api/openai/completion_request.h"

namespace lockstep {
namespace {

constexpr TokenId kBos = 1;
constexpr TokenId kEos = 2;
constexpr TokenId kOnce = 3;
constexpr TokenId kUpon = 4;
constexpr TokenId kByteC3 = 5;  // the two halves of "ö"
constexpr TokenId kByteB6 = 6;

// A SentencePiece vocabulary: its first space is its own.
std::unique_ptr<Tokenizer> make_tokenizer(bool with_bos = true) {
  TokenizerData data;
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "</s>", "▁Once", "▁upon"};
  data.types = {2, 3, 3, 1, 1};
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    data.types.push_back(6);
  }
  std::swap(data.tokens[kByteC3], data.tokens[5 + 0xC3]);
  std::swap(data.tokens[kByteB6], data.tokens[5 + 0xB6]);
  data.scores.assign(data.tokens.size(), 0);
  data.unknown = 0;
  data.eos = kEos;
  if (with_bos) {
    data.bos = kBos;
  } else {
    data.tokens[kBos] = "<other>";  // the family's own name would make it the beginning token
  }
  data.add_bos = with_bos;
  auto tokenizer = make_tokenizer(std::move(data));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(*tokenizer);
}

OutputToken token(TokenId id, std::string bytes, float logprob,
                  std::vector<TokenLogprob> top = {}) {
  return {id, std::move(bytes), logprob, std::move(top)};
}

Output text_output(std::string text) {
  Output output;
  output.text = std::move(text);
  return output;
}

Output finish_output(FinishReason reason) {
  Output output;
  output.finish = reason;
  return output;
}

TEST(CompletionFormat, a_choice_has_its_four_required_members) {
  const auto tokenizer = make_tokenizer();
  CompletionFormat format(*tokenizer, std::nullopt, 1, {"Once"}, false);
  Output whole = text_output(" upon");
  whole.finish = FinishReason::kLength;
  EXPECT_EQ(to_text(format.choice(0, whole)),
            R"({"index":0,"text":" upon","logprobs":null,"finish_reason":"length"})");
}

TEST(CompletionFormat, echo_puts_each_prompt_before_its_own_choices_once) {
  const auto tokenizer = make_tokenizer();
  CompletionFormat format(*tokenizer, std::nullopt, 2, {"A", "B"}, true);
  EXPECT_TRUE(format.opening(3).is_null());
  EXPECT_EQ(format.chunks(3, text_output("x")).at(0)["text"], "Bx");
  EXPECT_EQ(format.chunks(3, text_output("y")).at(0)["text"], "y");
  EXPECT_EQ(format.chunks(1, finish_output(FinishReason::kLength)).at(0)["text"], "A");
}

TEST(CompletionFormat, an_output_that_says_nothing_makes_no_chunk) {
  const auto tokenizer = make_tokenizer();
  CompletionFormat format(*tokenizer, std::nullopt, 1, {""}, false);
  EXPECT_TRUE(format.chunks(0, Output()).empty());
  const auto last = format.chunks(0, finish_output(FinishReason::kStop));
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0]["finish_reason"], "stop");
}

TEST(CompletionFormat, logprobs_are_four_arrays_whose_offsets_count_characters_across_chunks) {
  const auto tokenizer = make_tokenizer();
  CompletionFormat format(*tokenizer, 2, 1, {"Once"}, true);
  Output first = text_output("");
  first.prompt = {token(kBos, "", NAN), token(kOnce, " Once", -1, {{kOnce, -1}, {kUpon, -2}})};
  EXPECT_EQ(to_text(format.chunks(0, first).at(0)["logprobs"]),
            R"({"tokens":["<s>","Once"],"token_logprobs":[null,-1.0],)"
            R"("top_logprobs":[null,{" Once":-1.0," upon":-2.0,"Once":-1.0}],)"
            R"("text_offset":[0,0]})");
  Output second = text_output("ö upon");
  second.tokens = {token(kByteC3, "\xc3", -0.5, {{kUpon, -0.25}, {kOnce, -4}}),
                   token(kByteB6, "\xb6", -0.5, {{kByteB6, -0.5}}),
                   token(kUpon, " upon", -INFINITY)};
  second.finish = FinishReason::kLength;
  EXPECT_EQ(to_text(format.chunks(0, second).at(0)["logprobs"]),
            R"({"tokens":["bytes:\\xc3","bytes:\\xb6"," upon"],)"
            R"("token_logprobs":[-0.5,-0.5,-9999.0],)"
            R"("top_logprobs":[{" upon":-0.25," Once":-4.0,"bytes:\\xc3":-0.5},)"
            R"({"bytes:\\xb6":-0.5},{" upon":-9999.0}],"text_offset":[4,5,5]})");
}

TEST(CompletionFormat, without_alternatives_only_the_tokens_own_logprob_is_told) {
  const auto tokenizer = make_tokenizer();
  CompletionFormat format(*tokenizer, 0, 1, {""}, false);
  Output output = text_output(" upon");
  output.tokens = {token(kUpon, " upon", -3)};
  EXPECT_EQ(to_text(format.choice(0, output)["logprobs"]["top_logprobs"]), R"([{" upon":-3.0}])");
}

TEST(ChatFormat, a_choice_has_its_message_with_a_null_refusal) {
  const auto tokenizer = make_tokenizer();
  ChatFormat format(*tokenizer, false);
  Output whole = text_output("Hi");
  whole.finish = FinishReason::kStop;
  EXPECT_EQ(to_text(format.choice(0, whole)),
            R"({"index":0,"message":{"role":"assistant","content":"Hi","refusal":null},)"
            R"("logprobs":null,"finish_reason":"stop"})");
}

TEST(ChatFormat, a_stream_names_the_role_first_and_the_reason_in_an_empty_delta_last) {
  const auto tokenizer = make_tokenizer();
  ChatFormat format(*tokenizer, false);
  EXPECT_EQ(to_text(format.opening(1)["delta"]),
            R"({"role":"assistant","content":"","refusal":null})");
  EXPECT_TRUE(format.chunks(1, Output()).empty());
  Output last = text_output("Hi");
  last.finish = FinishReason::kLength;
  const auto chunks = format.chunks(1, last);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(to_text(chunks[0]),
            R"({"index":1,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null})");
  EXPECT_EQ(to_text(chunks[1]),
            R"({"index":1,"delta":{},"logprobs":null,"finish_reason":"length"})");
}

TEST(ChatFormat, logprobs_carry_the_bytes_of_half_characters) {
  const auto tokenizer = make_tokenizer();
  ChatFormat format(*tokenizer, true);
  Output output = text_output("ö");
  output.tokens = {token(kByteC3, "\xc3", -0.5, {{kUpon, -0.25}}), token(kByteB6, "\xb6", -1)};
  const auto chunks = format.chunks(0, output);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(
      to_text(chunks[0]["logprobs"]),
      "{\"content\":[{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.5,\"bytes\":[195],"
      "\"top_logprobs\":[{\"token\":\" upon\",\"logprob\":-0.25,\"bytes\":[32,117,112,111,110]}]},"
      "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-1.0,\"bytes\":[182],\"top_logprobs\":[]}],"
      "\"refusal\":null}");
}

// As lm-eval reads it: whatever is sampled has its entry, so the last one is not the prompt's.
TEST(CompletionFormat, the_token_that_ends_an_answer_has_its_logprob) {
  const auto tokenizer = make_tokenizer();
  CompletionFormat format(*tokenizer, 1, 1, {"Once"}, true);
  Output whole = text_output("");
  whole.prompt = {token(kOnce, " Once", NAN)};
  whole.tokens = {token(kEos, "", -0.5, {{kEos, -0.5}})};
  whole.finish = FinishReason::kStop;
  EXPECT_EQ(to_text(format.choice(0, whole)["logprobs"]),
            R"({"tokens":["Once","</s>"],"token_logprobs":[null,-0.5],)"
            R"("top_logprobs":[null,{"</s>":-0.5}],"text_offset":[0,4]})");
}

TEST(ChatFormat, the_token_that_ends_an_answer_is_no_part_of_its_logprobs) {
  const auto tokenizer = make_tokenizer();
  ChatFormat format(*tokenizer, true);
  Output whole = text_output(" upon");
  whole.tokens = {token(kUpon, " upon", -1), token(kEos, "", -0.5)};
  whole.finish = FinishReason::kStop;
  EXPECT_EQ(format.choice(0, whole)["logprobs"]["content"].size(), 1U);
  Output last;
  last.tokens = {token(kEos, "", -0.5)};
  last.finish = FinishReason::kStop;
  const auto chunks = ChatFormat(*tokenizer, true).chunks(0, last);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(to_text(chunks[0]), R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"})");
}

TEST(Answer, outputs_of_one_request_add_up) {
  Output whole;
  append_output(whole, text_output("a"));
  Output last = text_output("b");
  last.finish = FinishReason::kStop;
  last.generated_tokens = 2;
  append_output(whole, std::move(last));
  EXPECT_EQ(whole.text, "ab");
  EXPECT_EQ(whole.finish, FinishReason::kStop);
  EXPECT_EQ(whole.generated_tokens, 2U);
}

TEST(Answer, usage_adds_up_and_has_its_details) {
  EXPECT_EQ(to_text(usage_object({5, 2, 7, 3})),
            R"({"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,)"
            R"("prompt_tokens_details":{"cached_tokens":2},)"
            R"("completion_tokens_details":{"reasoning_tokens":3,)"
            R"("accepted_prediction_tokens":0,"rejected_prediction_tokens":0}})");
}

TEST(Answer, ids_differ_and_bear_their_prefix) {
  const std::string id = random_id("cmpl-");
  EXPECT_TRUE(id.starts_with("cmpl-"));
  EXPECT_EQ(id.size(), 37U);
  EXPECT_NE(id, random_id("cmpl-"));
}

TEST(CompletionPrompts, an_empty_prompt_is_the_beginning_token_or_refused) {
  CompletionRequest request;
  request.prompts = {std::string()};
  request.add_special_tokens = false;
  const auto encoded = encode_prompts(request, *make_tokenizer(), {.context_tokens = 64});
  ASSERT_TRUE(encoded);
  EXPECT_THAT(encoded->at(0), testing::ElementsAre(kBos));
  const auto refused = encode_prompts(request, *make_tokenizer(false), {.context_tokens = 64});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().parameter, "prompt");
}

TEST(CompletionPrompts, a_string_gets_its_beginning_token_and_ids_stay_as_they_are) {
  CompletionRequest request;
  request.prompts = {std::string("Once"), std::vector<TokenId>{kBos, kOnce, kUpon}};
  const auto encoded = encode_prompts(request, *make_tokenizer(), {.context_tokens = 64});
  ASSERT_TRUE(encoded);
  EXPECT_EQ(encoded->at(0).front(), kBos);
  EXPECT_THAT(encoded->at(1), testing::ElementsAre(kBos, kOnce, kUpon));
}

TEST(CompletionFormat, a_prompt_of_ids_is_echoed_as_text_and_kept_as_ids) {
  const auto tokenizer = make_tokenizer();
  const std::vector<Prompt> prompts = {std::string("Once"),
                                       std::vector<TokenId>{kBos, kOnce, kUpon}};
  CompletionFormat format(*tokenizer, std::nullopt, 1, prompts, true);
  EXPECT_EQ(bytes_of(prompts), 4 + 3 * sizeof(TokenId));
  EXPECT_EQ(format.chunks(1, text_output("x")).at(0)["text"], "Once uponx");
}

}  // namespace
}  // namespace lockstep
