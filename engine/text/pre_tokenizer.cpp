#include "engine/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/pause_point.h"
#include "engine/text/utf8.h"

namespace lockstep {

namespace {

constexpr size_t kWordsPerPause = 16;  // some microseconds

// In the patterns below _ stands for these: Unicode's White_Space, as the regular expressions that
// the vocabularies were trained with understand \s. (PCRE2's own \s has U+180E as well.)
constexpr std::string_view kWhiteSpaceClass =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

constexpr std::string_view kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^_\\p{L}\\p{N}]+|[_]+(?![^_])|[_]+";
constexpr std::string_view kPunctuation = "[\\p{P}$+<=>^~|]+";
constexpr std::string_view kFalconPunctuation = "[\\p{P}$+<=>^~|`]+";
constexpr std::string_view kDigit = "\\p{N}";
constexpr std::string_view kDigits = "\\p{N}+";
constexpr std::string_view kUpToThreeDigits = "\\p{N}{1,3}";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kLineBreak = "[\\r\\n]";
constexpr std::string_view kLines = "[^\\n]+|\\n+";
constexpr std::string_view kHanKana =
    "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+";
constexpr std::string_view kDeepSeekCjk =
    "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+";

// Digits in threes from the right, in three cuts: each run, its first one or two, and the threes. A
// single pattern would look at the rest of the run for each three.
constexpr std::string_view kDigitRun = "(?<!\\p{Nd})\\p{Nd}++";
constexpr std::string_view kDigitRunAtWordEnd =
    "(?<!\\p{Nd})\\p{Nd}++(?![\\p{L}\\p{Nd}\\p{Nl}\\p{M}\\p{Pc}\\x{24b6}-\\x{24e9}])";
constexpr std::string_view kFirstDigits = "\\A\\p{Nd}{1,2}(?=(?:\\p{Nd}{3})++\\z)";
constexpr std::string_view kNextThreeDigits = "\\G\\p{Nd}{3}";
// The same in runs of any numbers, of which those that are no digits stay with what precedes them:
// what lies before the first cut of each run of digits, and then the threes but for the last.
constexpr std::string_view kBeforeThreeDigits =
    "\\G\\p{N}+?(?<!\\p{Nd}\\p{Nd}\\p{Nd})(?=(?:\\p{Nd}{3})++(?!\\p{Nd}))";
constexpr std::string_view kThreeBeforeDigits = "\\G\\p{Nd}{3}(?=\\p{Nd})";

// Parts that many patterns share.
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS " ?[^_\\p{L}\\p{N}]+[\\r\\n]*"
#define SYMBOLS_OR_SLASH " ?[^_\\p{L}\\p{N}]+[\\r\\n/]*"
#define SPACE "[_]*[\\r\\n]+|[_]+(?![^_])|[_]+"
#define BIG "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
// The word characters of regular expressions in Rust.
#define LETTERS                                                                      \
  "\\p{L}\\p{Nl}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}" \
  "-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define NO_HAN(set) "(?:(?!\\p{sc:Han})" set ")"

constexpr std::string_view kLlama3 = CONTRACTION "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" SPACE;
constexpr std::string_view kQwen2 = CONTRACTION "|" WORD "|\\p{N}|" SYMBOLS "|" SPACE;
constexpr std::string_view kMiniCpm5 = CONTRACTION "|" WORD "|\\p{N}+|" SYMBOLS "|" SPACE;
constexpr std::string_view kUfakzeka = WORD "|\\p{N}|" SYMBOLS "|" SPACE;
constexpr std::string_view kQwen35 = CONTRACTION
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
    " ?[^_\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACE;
constexpr std::string_view kJais2 =
    CONTRACTION "|" WORD "|\\p{N}{1,3}|" SYMBOLS
                "|[_]*[\\r\\n]+|[_]{512}(?![^_])|[_]{256}(?![^_])|[_]{128}(?![^_])|"
                "[_]{64}(?![^_])|[_]{32}(?![^_])|[_]{16}(?![^_])|[_]{8}(?![^_])|[_]{4}(?![^_])|"
                "[_]{1,2}(?![^_])|[_]";
constexpr std::string_view kSeedCoder =
    CONTRACTION "|" WORD "|\\p{N}| ?[^_\\p{L}\\p{N}\\r\\n]+|" SPACE;
constexpr std::string_view kBailing =
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}|"
    " ?[^_\\p{L}\\p{N}]++[\\r\\n]*|[_]*[\\r\\n]|[_]+(?![^_])|[_]+";
constexpr std::string_view kExaoneMoe = CONTRACTION
    "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|"
    " ?[^_\\p{L}\\p{N}]+[\\r\\n/]?|[_]*[\\r\\n]|[_]+(?![^_])|[_]+";
constexpr std::string_view kTekken =
    BEFORE BIG "*" SMALL "+|" BEFORE BIG "+" SMALL "*|\\p{N}|" SYMBOLS_OR_SLASH "|" SPACE;
constexpr std::string_view kGpt4o =
    BEFORE BIG "*" SMALL "+" CONTRACTION "?|" BEFORE BIG "+" SMALL "*" CONTRACTION
               "?|\\p{N}{1,3}|" SYMBOLS_OR_SLASH "|" SPACE;
constexpr std::string_view kYoutu =
    BEFORE BIG "*" SMALL "+" CONTRACTION "?|" BEFORE BIG "+" SMALL "*" CONTRACTION
               "?|\\p{N}|" SYMBOLS_OR_SLASH "|" SPACE;
constexpr std::string_view kYoutuScripts =
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|"
    "[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}"
    "\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|"
    "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+";
constexpr std::string_view kKimi =
    "\\p{sc:Han}+|" BEFORE NO_HAN(BIG) "*" NO_HAN(SMALL) "+" CONTRACTION "?|" BEFORE NO_HAN(
        BIG) "+" NO_HAN(SMALL) "*" CONTRACTION "?|\\p{N}{1,3}|" SYMBOLS "|" SPACE;
#define DEEP_SEEK_WORD                                           \
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^\\x{5f}`{|}~][A-Za-z]+|" \
  "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
constexpr std::string_view kDeepSeek3 = DEEP_SEEK_WORD "[\\r\\n]*|" SPACE;
constexpr std::string_view kSpark = DEEP_SEEK_WORD "|[\\r\\n]|[_]+(?![^_])|[_]+";
constexpr std::string_view kDeepSeekLetters =
    "[_]?["
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-"
    "\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}"
    "\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}"
    "\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-"
    "\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-"
    "\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-"
    "\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-"
    "\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}"
    "\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}"
    "\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-"
    "\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-"
    "\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-"
    "\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"
    "\\x{1e900}-\\x{1e943}"
    "]+";
constexpr std::string_view kDeepSeekPunctuation =
    "[_]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+";
constexpr std::string_view kSpaceAtEnd = "(?<![_])[_]++\\z";
constexpr std::string_view kLetters = "[_]?\\p{L}+";
constexpr std::string_view kMarks = "[_]?\\p{P}+";
constexpr std::string_view kBloom =
    " ?[^(_|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+";
constexpr std::string_view kAsianScripts =
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{309f}"
    "\\x{30a0}-\\x{30ff}\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{e7f}"
    "\\x{e80}-\\x{eff}\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}"
    "\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+";
constexpr std::string_view kWords = "[" LETTERS "]+|[^_" LETTERS "]+";
constexpr std::string_view kSentinel = "<sentinel:[0-9]+>";
constexpr std::string_view kImage = "IMGIMG[A-I]{1,4}Z";
constexpr std::string_view kIndent = "[\\t\\n]|    |  ";
constexpr std::string_view kOnePunctuation = "[\\p{P}!-/:-@\\[-`{-~]";

// One row per name. Each pattern cuts what the one before it left: its matches, and what lies
// between them.
struct Row {
  std::string_view name;
  std::array<std::string_view, 6> patterns;  // those that are empty do nothing
  bool ignores_merges = false;
  bool adds_bos = false;
  TokenAlphabet alphabet = TokenAlphabet::kBytes;
  bool insists_on_bos = false;  // whatever the file says
  bool adds_separator = false;
};

constexpr Row kRows[] = {
    {"default", {kPunctuation, kGpt2, kDigits, kThreeDigits}},
    {"gpt-2", {kGpt2}},
    {"phi-2", {kGpt2}},
    {"jina-es", {kGpt2}},
    {"jina-de", {kGpt2}},
    {"jina-v2-es", {kGpt2}},
    {"jina-v2-de", {kGpt2}},
    {"gigachat", {kGpt2}},
    {"a.x-4.0", {kGpt2}},
    {"mellum", {kGpt2}},
    {"modern-bert", {kGpt2}},
    {"mpt", {kGpt2}},
    {"olmo", {kGpt2}},
    {"jais", {kGpt2}},
    {"exaone4", {kGpt2}},
    {"trillion", {kGpt2}},
    {"granite-docling", {kGpt2}},
    {"roberta-bpe", {kGpt2}, false, false, TokenAlphabet::kBytes, false, true},
    {"jina-v1-en", {kGpt2}, false, false, TokenAlphabet::kBytes, false, true},
    {"jina-v2-code", {kGpt2}, false, false, TokenAlphabet::kBytes, false, true},
    {"superbpe", {kDigits, kBeforeThreeDigits, kThreeBeforeDigits}},
    {"smollm", {kDigit, kGpt2}},
    {"starcoder", {kDigit, kGpt2}},
    {"refact", {kDigit, kGpt2}},
    {"command-r", {kDigit, kGpt2}},
    {"codeshell", {kDigit, kGpt2}},
    {"exaone", {kDigit, kGpt2}},
    {"minerva-7b", {kDigit, kGpt2}},
    {"mellum2", {kDigit, kGpt2}},
    {"falcon", {kFalconPunctuation, kGpt2, kThreeDigits}},
    {"llama-bpe", {kLlama3}, true, true},
    {"llama-v3", {kLlama3}, true, true},
    {"llama3", {kLlama3}, true, true},
    {"falcon3", {kLlama3}, true, true},
    {"falcon-h1", {kLlama3}, true, true},
    {"pixtral", {kLlama3}, true, true},
    {"midm-2.0", {kLlama3}, true, true},
    {"lfm2", {kLlama3}, true, true},
    {"jina-v5-nano", {kLlama3}, true, true},
    {"dbrx", {kLlama3}},
    {"smaug-bpe", {kLlama3}},
    {"chatglm-bpe", {kLlama3}},
    {"glm4", {kLlama3}, true},
    {"glm5", {kLlama3}, true},
    {"jais-2", {kJais2}},
    {"minicpm5", {kUpToThreeDigits, kMiniCpm5}, true},
    {"qwen2", {kQwen2}},
    {"deepseek-r1-qwen", {kQwen2}},
    {"kormo", {kQwen2}},
    {"f2llmv2", {kQwen2}},
    {"megrez", {kQwen2}},
    {"stablelm2", {kQwen2}},
    {"hunyuan", {kQwen2}},
    {"solar-open", {kQwen2}},
    {"grok-2", {kQwen2}},
    {"laguna", {kLines, kQwen2}},
    {"ufakzeka", {kUfakzeka}},
    {"qwen35", {kQwen35}},
    {"seed-coder", {kSeedCoder}},
    {"bailingmoe", {kBailing}},
    {"bailingmoe2", {kBailing}},
    {"llada-moe", {kBailing}},
    {"exaone-moe", {kExaoneMoe}},
    {"tekken", {kTekken}, true, true},
    {"gpt-4o", {kGpt4o}},
    {"llama4", {kGpt4o}},
    {"kanana2", {kGpt4o}},
    {"talkie", {kGpt4o}},
    {"minimax-m2", {kGpt4o}},
    {"granite-embed-multi-97m", {kGpt4o}, true},
    {"tiny_aya", {kDigitRunAtWordEnd, kFirstDigits, kNextThreeDigits, kGpt4o}},
    {"cohere2moe", {kDigitRunAtWordEnd, kFirstDigits, kNextThreeDigits, kGpt4o}},
    {"kimi-k2", {kKimi}},
    {"youtu", {kYoutuScripts, kYoutu}, true},
    {"deepseek-v3", {kUpToThreeDigits, kHanKana, kDeepSeek3}},
    {"hunyuan-dense", {kUpToThreeDigits, kHanKana, kDeepSeek3}},
    {"joyai-llm", {kUpToThreeDigits, kHanKana, kDeepSeek3}},
    {"hy_v4", {kUpToThreeDigits, kHanKana, kDeepSeek3}},
    {"spark2_5", {kUpToThreeDigits, kHanKana, kSpark, kDigit}},
    {"deepseek-llm",
     {kLineBreak, kDeepSeekLetters, kDeepSeekPunctuation, kSpaceAtEnd, kDeepSeekCjk, kDigits}},
    {"deepseek-coder", {kLineBreak, kLetters, kMarks, kDeepSeekCjk, kDigit}},
    {"afmoe", {kDigitRun, kFirstDigits, kNextThreeDigits, kAsianScripts, kDeepSeek3}},
    {"poro-chat", {kBloom}},
    {"bloom", {kBloom}},
    {"gpt3-finnish", {kBloom}},
    {"viking", {kBloom, kDigit}},
    {"chameleon", {kSentinel, kImage, kIndent, kDigit, kOnePunctuation, kGpt2}, false, true},
    {"gemma4", {kLines}, false, true, TokenAlphabet::kCharacters, true},
    {"granite-embed-multi-311m", {kLines}, false, true, TokenAlphabet::kCharacters, true},
    {"sarvam-moe", {kLines}, false, false, TokenAlphabet::kCharacters},
    {"whitespace", {kWords}, false, false, TokenAlphabet::kLetters},
};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatchData>;
using MatchContext = std::unique_ptr<pcre2_match_context, FreeMatchContext>;

Code compile(std::string_view pattern) {
  std::string expanded;
  for (const char character : pattern) {
    if (character == '_') {
      expanded.append(kWhiteSpaceClass);
    } else {
      expanded.push_back(character);
    }
  }
  int error = 0;
  PCRE2_SIZE position = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(), PCRE2_UTF,
                          &error, &position, nullptr));
  CHECK(code != nullptr, "pattern {} does not compile: error {} at {}", pattern, error, position);
  return code;
}

// The state of matching beside the compiled pattern; one for each text that is split.
struct Matching {
  explicit Matching(size_t text_bytes)
      : data(pcre2_match_data_create(1, nullptr)), context(pcre2_match_context_create(nullptr)) {
    CHECK(data != nullptr && context != nullptr, "no memory for matching a pattern");
    // The patterns have no nested repeats, so a match takes steps in proportion to what it looks
    // at; the limit is there so that a mistake in one costs a bad cut, not a hanging request.
    const size_t steps_max = 1'000'000 + 16 * text_bytes;
    pcre2_set_match_limit(context.get(),
                          static_cast<uint32_t>(std::min<size_t>(steps_max, UINT32_MAX)));
  }

  MatchData data;
  MatchContext context;
};

// A run of the text that is all valid UTF-8 or all invalid.
struct Run {
  std::string_view text;
  bool valid = false;
};

Run next_run(std::string_view text) {
  const bool valid = decode_utf8(text).valid;
  size_t size = 0;
  while (size < text.size()) {
    const DecodedCharacter character = decode_utf8(text.substr(size));
    if (character.valid != valid) break;
    size += character.size_bytes;
  }
  return {text.substr(0, size), valid};
}

}  // namespace

struct PreTokenizer::Patterns {
  std::vector<Code> codes;
  bool ignores_merges = false;
  bool adds_bos = false;
  TokenAlphabet alphabet = TokenAlphabet::kBytes;
  bool insists_on_bos = false;
  bool adds_separator = false;

  // Appends what `code` makes of `text`, which is valid UTF-8.
  void cut(std::string_view text, const pcre2_code* code, const Matching& matching,
           std::vector<std::string_view>& parts) const;
};

PreTokenizer::PreTokenizer(std::unique_ptr<const Patterns> patterns)
    : patterns_(std::move(patterns)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<PreTokenizer> PreTokenizer::make(std::string_view name) {
  const std::string_view wanted = name.empty() ? "default" : name;
  std::string known;
  for (const Row& row : kRows) {
    if (row.name == wanted) {
      auto patterns = std::make_unique<Patterns>();
      for (const std::string_view pattern : row.patterns) {
        if (!pattern.empty()) patterns->codes.push_back(compile(pattern));
      }
      patterns->ignores_merges = row.ignores_merges;
      patterns->adds_bos = row.adds_bos;
      patterns->alphabet = row.alphabet;
      patterns->insists_on_bos = row.insists_on_bos;
      patterns->adds_separator = row.adds_separator;
      return PreTokenizer(std::move(patterns));
    }
    known.append(known.empty() ? "" : ", ").append(row.name);
  }
  return invalid_input(
      "tokenizer.ggml.pre is '{}', which is not known here; known are: {}. Convert the model with "
      "one of these if it fits.",
      replace_invalid_utf8(name.substr(0, 100)), known);
}

std::vector<std::string_view> PreTokenizer::names() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) names.push_back(row.name);
  return names;
}

bool PreTokenizer::ignores_merges() const {
  return patterns_->ignores_merges;
}
TokenAlphabet PreTokenizer::alphabet() const {
  return patterns_->alphabet;
}
bool PreTokenizer::adds_bos() const {
  return patterns_->adds_bos;
}
bool PreTokenizer::insists_on_bos() const {
  return patterns_->insists_on_bos;
}
bool PreTokenizer::adds_separator() const {
  return patterns_->adds_separator;
}

void PreTokenizer::Patterns::cut(std::string_view text, const pcre2_code* code,
                                 const Matching& matching,
                                 std::vector<std::string_view>& parts) const {
  const bool keeps_gaps = alphabet != TokenAlphabet::kLetters;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t position = 0;
  while (position < text.size()) {
    // Without PCRE2_NO_UTF_CHECK every match would walk the whole text.
    const int matched = pcre2_match(code, subject, text.size(), position, PCRE2_NO_UTF_CHECK,
                                    matching.data.get(), matching.context.get());
    if (matched <= 0) break;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(matching.data.get());
    if (bounds[1] <= bounds[0]) break;
    if (parts.size() % kWordsPerPause == 0) pause_point();
    if (bounds[0] > position && keeps_gaps) {
      parts.push_back(text.substr(position, bounds[0] - position));
    }
    parts.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
    position = bounds[1];
  }
  if (position < text.size() && keeps_gaps) parts.push_back(text.substr(position));
}

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& words) const {
  const Matching matching(text.size());
  std::vector<std::string_view> parts;
  std::vector<std::string_view> finer;
  while (!text.empty()) {
    const Run run = next_run(text);
    text.remove_prefix(run.text.size());
    parts.assign(1, run.text);
    if (run.valid) {
      for (const Code& code : patterns_->codes) {
        finer.clear();
        for (const std::string_view part : parts) {
          patterns_->cut(part, code.get(), matching, finer);
        }
        parts.swap(finer);
      }
    }
    words.insert(words.end(), parts.begin(), parts.end());
  }
}

}  // namespace lockstep
