#include "engine/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <span>
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
constexpr std::string_view kWhiteSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

constexpr std::string_view kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^_\\p{L}\\p{N}]+|[_]+(?![^_])|[_]+";
constexpr std::string_view kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^_\\p{L}\\p{N}]+[\\r\\n]*|[_]*[\\r\\n]+|[_]+(?![^_])|[_]+";
constexpr std::string_view kQwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^_\\p{L}\\p{N}]+[\\r\\n]*|[_]*[\\r\\n]+|[_]+(?![^_])|[_]+";
constexpr std::string_view kPunctuation = "[\\p{P}$+<=>^~|]+";
constexpr std::string_view kDigit = "\\p{N}";
constexpr std::string_view kDigits = "\\p{N}+";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";

// Each pattern cuts what the one before it left: its matches, and what lies between them.
constexpr std::array<std::string_view, 1> kGpt2Patterns = {kGpt2};
constexpr std::array<std::string_view, 1> kLlama3Patterns = {kLlama3};
constexpr std::array<std::string_view, 1> kQwen2Patterns = {kQwen2};
constexpr std::array<std::string_view, 2> kSmolLmPatterns = {kDigit, kGpt2};
constexpr std::array<std::string_view, 4> kDefaultPatterns = {kPunctuation, kGpt2, kDigits,
                                                              kThreeDigits};

struct Row {
  std::string_view name;
  std::span<const std::string_view> patterns;
  bool ignores_merges = false;
  bool adds_bos = false;
};

constexpr std::array kRows = {
    Row{"default", kDefaultPatterns},
    Row{"gpt-2", kGpt2Patterns},
    Row{"llama-bpe", kLlama3Patterns, true, true},
    Row{"llama-v3", kLlama3Patterns, true, true},
    Row{"llama3", kLlama3Patterns, true, true},
    Row{"qwen2", kQwen2Patterns},
    Row{"deepseek-r1-qwen", kQwen2Patterns},
    Row{"smollm", kSmolLmPatterns},
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
      expanded.append(kWhiteSpace);
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

// What matching needs beside the compiled pattern; one for each text that is split.
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

  // Appends what `code` makes of `text`, which is valid UTF-8.
  static void cut(std::string_view text, const pcre2_code* code, const Matching& matching,
                  std::vector<std::string_view>& parts);
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
        patterns->codes.push_back(compile(pattern));
      }
      patterns->ignores_merges = row.ignores_merges;
      patterns->adds_bos = row.adds_bos;
      return PreTokenizer(std::move(patterns));
    }
    known.append(known.empty() ? "" : ", ").append(row.name);
  }
  return invalid_input(
      "tokenizer.ggml.pre is '{}', which is not known here; known are: {}. Convert the model with "
      "one of these if it fits.",
      replace_invalid_utf8(name.substr(0, 100)), known);
}

bool PreTokenizer::ignores_merges() const {
  return patterns_->ignores_merges;
}
bool PreTokenizer::adds_bos() const {
  return patterns_->adds_bos;
}

void PreTokenizer::Patterns::cut(std::string_view text, const pcre2_code* code,
                                 const Matching& matching, std::vector<std::string_view>& parts) {
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
    if (bounds[0] > position) parts.push_back(text.substr(position, bounds[0] - position));
    parts.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
    position = bounds[1];
  }
  if (position < text.size()) parts.push_back(text.substr(position));
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
          Patterns::cut(part, code.get(), matching, finer);
        }
        parts.swap(finer);
      }
    }
    words.insert(words.end(), parts.begin(), parts.end());
  }
}

}  // namespace lockstep
