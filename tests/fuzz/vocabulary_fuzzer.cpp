// A vocabulary that the input makes, as a model file carries it: tokens, scores, types, merges,
// special ids. It is refused by name or works: tokens are in range, as few as is promised, and
// streams say what decode() says; of plain bytes the text comes back.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/text/grammar/token_trie.h"
#include "engine/text/model_tokenizer.h"
#include "engine/text/text_stream.h"
#include "engine/text/utf8.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

constexpr size_t kAddedMax = 24;  // tokens, and merges
// A message may list all pre-tokenizers and quote some bytes of the file, but does not grow with
// it.
constexpr size_t kMessageBytesMax = 2000;

void add_tokens(FuzzedDataProvider& input, bool is_plain, TokenizerData& data) {
  constexpr float kScores[] = {0,
                               -0.0F,
                               1,
                               -1,
                               1e30F,
                               -1e30F,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  const auto added = input.ConsumeIntegralInRange<size_t>(0, kAddedMax);
  for (size_t count = 0; count < added; ++count) {
    const auto type = is_plain ? 1 : input.ConsumeIntegralInRange<int64_t>(0, 7);
    const float score = input.PickValueInArray(kScores);
    data.tokens.push_back(input.ConsumeRandomLengthString(12));
    if (!data.types.empty()) data.types.push_back(type);
    if (!data.scores.empty()) data.scores.push_back(score);
  }
}

void add_merges(FuzzedDataProvider& input, TokenizerData& data) {
  const auto added = input.ConsumeIntegralInRange<size_t>(0, kAddedMax);
  const auto any = [&] {
    return data.tokens[input.ConsumeIntegralInRange<size_t>(0, data.tokens.size() - 1)];
  };
  for (size_t count = 0; count < added; ++count) {
    const std::string left = any();
    const std::string right = any();
    if (input.ConsumeBool()) data.tokens.push_back(left + right);
    data.merges.push_back(left + " " + right);
  }
  if (!data.types.empty()) data.types.resize(data.tokens.size(), 1);
  if (!data.scores.empty()) data.scores.resize(data.tokens.size());
}

TokenizerData make_other(FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange(0, 3)) {
    case 0:
      return small_word_piece();
    case 1: {
      TokenizerData data = small_unigram(input.ConsumeBool());
      const std::string map = input.ConsumeRandomLengthString(64);
      data.character_map.assign(map.begin(), map.end());
      return data;
    }
    case 2:
      return small_character_pair();
    default:
      return small_sentence_piece();
  }
}

TokenizerData make_data(FuzzedDataProvider& input, bool is_plain) {
  TokenizerData data;
  if (is_plain || input.ConsumeBool()) {
    data = small_byte_pair(input.PickValueInArray(
        {"gpt-2", "llama-bpe", "qwen2", "smollm", "default", "deepseek-llm", "tekken", "no such"}));
  } else {
    data = make_other(input);
  }
  if (!is_plain && input.ConsumeBool()) data.types.clear();
  if (!is_plain && input.ConsumeBool()) data.scores.clear();
  add_tokens(input, is_plain, data);
  add_merges(input, data);
  if (is_plain) return data;
  const auto dropped = input.ConsumeIntegralInRange<size_t>(0, 2) * 130;  // bytes among them
  data.tokens.resize(data.tokens.size() - std::min(dropped, data.tokens.size()));
  if (!data.types.empty()) data.types.resize(data.tokens.size(), 1);
  if (!data.scores.empty()) data.scores.resize(data.tokens.size());
  return data;
}

void add_special(FuzzedDataProvider& input, test::GgufWriter& file) {
  for (const std::string name :
       {"bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "cls"}) {
    if (!input.ConsumeBool()) continue;
    file.add("tokenizer.ggml." + name + "_token_id", input.ConsumeIntegralInRange(-1, 300));
  }
  for (const std::string name :
       {"add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces",
        "normalizer.lowercase", "normalizer.strip_accents"}) {
    if (input.ConsumeBool()) file.add("tokenizer.ggml." + name, input.ConsumeBool());
  }
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(FuzzedDataProvider& input, bool is_plain) {
  const TokenizerData data = make_data(input, is_plain);
  test::GgufWriter writer;
  writer.add("tokenizer.ggml.model", data.model).add("tokenizer.ggml.pre", data.pre);
  writer.add_array("tokenizer.ggml.tokens", data.tokens);
  if (!data.scores.empty()) writer.add_array("tokenizer.ggml.scores", data.scores);
  if (!data.types.empty()) {
    writer.add_array("tokenizer.ggml.token_type",
                     std::vector<int32_t>(data.types.begin(), data.types.end()));
  }
  if (!data.merges.empty()) writer.add_array("tokenizer.ggml.merges", data.merges);
  if (!data.character_map.empty()) {
    writer.add_array("tokenizer.ggml.precompiled_charsmap", data.character_map);
  }
  add_special(input, writer);
  const auto bytes = writer.bytes();
  const auto file = GgufFile::parse(bytes, "fuzz.gguf");
  CHECK(file.has_value(), "{}", file.error().message);
  auto read = read_tokenizer_data(*file);
  if (!read) return std::unexpected(read.error());
  return make_tokenizer(std::move(*read));
}

void use(const Tokenizer& tokenizer, std::string_view text, bool special) {
  const auto tokens = tokenizer.encode(text, {.add_special = special, .parse_special = special});
  for (const TokenId token : tokens) {
    CHECK(token >= 0 && static_cast<size_t>(token) < tokenizer.vocabulary_size(), "{}", token);
  }
  CHECK(special || tokens.size() >= tokenizer.least_tokens(text.size()),
        "{} bytes became {} tokens, at least {} were promised", text.size(), tokens.size(),
        tokenizer.least_tokens(text.size()));
  const std::string decoded = tokenizer.decode(tokens, false);
  TextStream stream(tokenizer, true, true);
  std::string streamed;
  for (const TokenId token : tokens) streamed += stream.push(token);
  streamed += stream.finish();
  CHECK(streamed == replace_invalid_utf8(decoded), "'{}' was streamed as '{}'", decoded, streamed);
}

void make_and_use(FuzzedDataProvider& input) {
  const bool is_plain = input.ConsumeBool();
  const auto tokenizer = make_tokenizer(input, is_plain);
  if (!tokenizer) {
    const Error& error = tokenizer.error();
    CHECK(error.kind == ErrorKind::kInvalidInput, "{}", error.message);
    CHECK(error.message.find("tokenizer.ggml.") != std::string::npos, "{}", error.message);
    CHECK(error.message.size() <= kMessageBytesMax, "a message of {} bytes", error.message.size());
    return;
  }
  const TokenTrie trie(**tokenizer, (*tokenizer)->vocabulary_size());
  const std::string text = input.ConsumeRemainingBytesAsString();
  use(**tokenizer, text, true);
  use(**tokenizer, text, false);
  if (!is_plain) return;
  const auto tokens = (*tokenizer)->encode(text, {.add_special = false});
  const std::string decoded = (*tokenizer)->decode(tokens, true);
  CHECK(decoded == text, "'{}' came back as '{}'", text, decoded);
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  lockstep::make_and_use(input);
  return 0;
}
