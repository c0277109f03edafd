#include "engine/text/model_tokenizer.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "engine/text/byte_pair_tokenizer.h"
#include "engine/text/plamo_tokenizer.h"
#include "engine/text/sentence_piece_tokenizer.h"
#include "engine/text/unigram_tokenizer.h"
#include "engine/text/word_piece_tokenizer.h"

namespace lockstep {

namespace {

// Reads key after key; after the first error the others give nothing, and error() is that error.
class KeyReader {
 public:
  explicit KeyReader(const GgufFile& file) : file_(file) {}

  std::string text(std::string_view name) { return take(file_.text(key(name))).value_or(""); }
  std::optional<bool> boolean(std::string_view name) { return take(file_.boolean(key(name))); }
  std::vector<float> numbers(std::string_view name) {
    return take(file_.numbers(key(name))).value_or(std::vector<float>{});
  }
  std::vector<int64_t> integers(std::string_view name) {
    return take(file_.integers(key(name))).value_or(std::vector<int64_t>{});
  }
  std::vector<uint8_t> bytes(std::string_view name) {
    std::vector<uint8_t> bytes;
    for (const int64_t number : integers(name)) {
      if (number < std::numeric_limits<int8_t>::min() ||
          number > std::numeric_limits<uint8_t>::max()) {
        fail(Error{ErrorKind::kInvalidInput,
                   fmt::format("{} holds {}, which is no byte.", key(name), number)});
        return {};
      }
      bytes.push_back(static_cast<uint8_t>(number));
    }
    return bytes;
  }
  std::vector<std::string> texts(std::string_view name) {
    const auto* found = take(file_.texts(key(name)));
    return found != nullptr ? *found : std::vector<std::string>{};
  }
  std::optional<TokenId> token(std::string_view name) {
    const std::optional<uint64_t> id = take(file_.integer(key(name)));
    if (!id) return std::nullopt;
    if (*id > static_cast<uint64_t>(std::numeric_limits<TokenId>::max())) {
      fail(Error{
          ErrorKind::kInvalidInput,
          fmt::format("{} is {}, which is no token id: those are below 2^31.", key(name), *id)});
      return std::nullopt;
    }
    return static_cast<TokenId>(*id);
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  static std::string key(std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); }

  void fail(const Error& error) {
    if (!error_) error_ = error;
  }

  template <typename T>
  T take(Result<T> result) {
    if (result) return std::move(*result);
    fail(result.error());
    return T{};
  }

  const GgufFile& file_;
  std::optional<Error> error_;
};

// Finds what the tokenizers package calls lstrip and rstrip of added tokens, by families: of Phi 3
// the marks of turns, of encoders the mask.
void find_strips(std::string_view architecture, TokenizerData& data) {
  const auto is_any_of = [](std::string_view name, std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  std::string_view mask;
  if (is_any_of(architecture, {"nomic-bert-moe", "jina-bert-v3"}) ||
      is_any_of(data.pre, {"jina-v2-de", "jina-v2-es", "jina-v2-code"})) {
    mask = "<mask>";
  }
  if (architecture == "modern-bert") mask = "[MASK]";
  const bool has_marks = architecture == "phi3" && data.model == "llama";
  for (size_t id = 0; id < data.types.size() && id < data.tokens.size(); ++id) {
    const auto type = static_cast<TokenType>(data.types[id]);
    if (type != TokenType::kControl && type != TokenType::kUserDefined) continue;
    const std::string& text = data.tokens[id];
    if (text == mask) data.strip_left.push_back(static_cast<TokenId>(id));
    if (has_marks && !is_any_of(text, {"<s>", "<|endoftext|>"})) {
      data.strip_right.push_back(static_cast<TokenId>(id));
    }
  }
}

}  // namespace

Result<TokenizerData> read_tokenizer_data(const GgufFile& file) {
  KeyReader reader(file);
  TokenizerData data;
  data.model = reader.text("model");
  data.pre = reader.text("pre");
  data.tokens = reader.texts("tokens");
  data.scores = reader.numbers("scores");
  data.types = reader.integers("token_type");
  data.merges = reader.texts("merges");
  data.bos = reader.token("bos_token_id");
  data.eos = reader.token("eos_token_id");
  data.eot = reader.token("eot_token_id");
  data.eom = reader.token("eom_token_id");
  data.unknown = reader.token("unknown_token_id");
  data.padding = reader.token("padding_token_id");
  data.add_bos = reader.boolean("add_bos_token");
  data.add_eos = reader.boolean("add_eos_token");
  data.add_space_prefix = reader.boolean("add_space_prefix");
  data.remove_extra_whitespaces = reader.boolean("remove_extra_whitespaces");
  data.separator = reader.token("seperator_token_id");  // as the file format spells it
  data.classifier = reader.token("cls_token_id");
  data.add_separator = reader.boolean("add_sep_token");
  data.lowercase = reader.boolean("normalizer.lowercase");
  data.strip_accents = reader.boolean("normalizer.strip_accents");
  data.character_map = reader.bytes("precompiled_charsmap");
  if (reader.error()) return std::unexpected(*reader.error());
  const auto architecture = file.text("general.architecture");
  if (!architecture) return std::unexpected(architecture.error());
  find_strips(architecture->value_or(""), data);
  return data;
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(TokenizerData data) {
  if (auto checked = check_tokenizer_data(data); !checked) {
    return std::unexpected(checked.error());
  }
  struct Kind {
    std::string_view name;
    Result<std::unique_ptr<Tokenizer>> (*make)(TokenizerData);
  };
  static constexpr std::array<Kind, 7> kKinds = {{{"llama", &SentencePieceTokenizer::make},
                                                  {"gpt2", &BytePairTokenizer::make},
                                                  {"gemma4", &BytePairTokenizer::make},
                                                  {"whitespace", &BytePairTokenizer::make},
                                                  {"bert", &WordPieceTokenizer::make},
                                                  {"t5", &UnigramTokenizer::make},
                                                  {"plamo2", &PlamoTokenizer::make}}};
  for (const Kind& kind : kKinds) {
    if (data.model == kind.name) return kind.make(std::move(data));
  }
  return invalid_input(
      "tokenizer.ggml.model is '{}', which is not known here; known are: llama, "
      "gpt2, gemma4, whitespace, bert, t5, plamo2. Use a model with one of these tokenizers.",
      quote_token(data.model));
}

}  // namespace lockstep
