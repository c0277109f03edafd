// The cost of masks: for answers of realistic schemas, token by token, finding the mask and
// applying it to a vocabulary's logits. LOCKSTEP_BENCHMARK_MODEL names the file with the
// vocabulary; without it that of the bundled model is taken, which is small (2048 tokens): figures
// for a model that people use want its own file.
//
//   lockstep_grammar_benchmark
//
// "cold": the first answer of a grammar that was just compiled; "warm": those after it. p50, p99
// and max are of single tokens, in microseconds.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/model/gguf_file.h"
#include "engine/text/grammar/grammar_matcher.h"
#include "engine/text/model_tokenizer.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using Kind = GrammarSource::Kind;

struct Example {
  const char* name;
  Kind kind;
  std::string source;
  std::string answer;
};

const std::vector<Example>& examples() {
  static const std::vector<Example> list = {
      {"object", Kind::kJsonObject, "",
       R"({"name": "Ada Lovelace", "born": 1815, "works": ["Notes on the Analytical Engine"],)"
       R"( "known": true, "parents": {"father": "Lord Byron", "mother": "Annabella Milbanke"}})"},
      {"person", Kind::kJsonSchema,
       R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer",
        "minimum":0,"maximum":150},"email":{"type":"string","format":"email"},"tags":{"type":
        "array","items":{"type":"string"},"maxItems":8}},"required":["name","age","email","tags"],
        "additionalProperties":false})",
       R"({"name": "Grace Brewster Murray Hopper", "age": 85, "email": "grace@navy.mil",)"
       R"( "tags": ["computer science", "COBOL", "compilers", "rear admiral"]})"},
      {"limited", Kind::kJsonSchema,
       R"({"type":"object","properties":{"title":{"type":"string","maxLength":120},"summary":
        {"type":"string","minLength":20,"maxLength":600},"score":{"type":"number","minimum":0,
        "maximum":1}},"required":["title","summary","score"]})",
       R"({"title": "Why the sky is blue — and sunsets are not", "summary": "Sunlight is scattered)"
       R"( by the molecules of the air, blue light far more than red. At noon we see the scattered)"
       R"( blue; in the evening the light's way is so long that only \"warm\" colours are left.",)"
       R"( "score": 0.875})"},
      {"order", Kind::kJsonSchema,
       R"({"type":"object","$defs":{"item":{"type":"object","properties":{"sku":{"type":"string",
        "pattern":"^[A-Z]{3}-[0-9]{4}$"},"count":{"type":"integer","minimum":1},"note":{"anyOf":
        [{"type":"string"},{"type":"null"}]}},"required":["sku","count"],"additionalProperties":
        false}},"properties":{"id":{"type":"string","format":"uuid"},"placed":{"type":"string",
        "format":"date-time"},"state":{"enum":["new","paid","shipped","cancelled"]},"items":{"type":
        "array","items":{"$ref":"#/$defs/item"},"minItems":1,"maxItems":50}},"required":["id",
        "placed","state","items"],"additionalProperties":false})",
       R"({"id": "0b7e0d9a-3c55-4f7e-9d3a-2f1f6f0c1a2b", "placed": "2024-05-17T09:30:00Z",)"
       R"( "state": "paid", "items": [{"sku": "ABC-1234", "count": 2, "note": "gift wrapping,)"
       R"( please"}, {"sku": "XYZ-0001", "count": 10, "note": null}, {"sku": "QQQ-9999",)"
       R"( "count": 1}]})"},
      {"tree", Kind::kJsonSchema,
       R"({"type":"object","properties":{"value":{"type":"string"},"children":{"type":"array",
        "items":{"$ref":"#"}}},"required":["value","children"],"additionalProperties":false})",
       R"({"value": "animals", "children": [{"value": "mammals", "children": [{"value": "cats",)"
       R"( "children": []}, {"value": "whales", "children": []}]}, {"value": "birds",)"
       R"( "children": [{"value": "owls", "children": []}]}]})"},
      {"regex", Kind::kRegex, "(The|A) [a-z]+( [a-z]+){3,20}[.!?]",
       "The quick brown fox jumps over the lazy dog near the old river bank."},
      {"gbnf", Kind::kGbnf,
       "root ::= (move \"\\n\")+\nmove ::= [1-9] [0-9]? \". \" ply \" \" ply\nply ::= piece? "
       "[a-h]? [1-8]? \"x\"? [a-h] [1-8] \"+\"?\npiece ::= [NBRQK]",
       "1. e4 e5\n2. Nf3 Nc6\n3. Bb5 a6\n4. Ba4 Nf6\n5. Re1 Be7\n"},
  };
  return list;
}

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> made = [] {
    const char* given = std::getenv("LOCKSTEP_BENCHMARK_MODEL");
    const std::string path = given != nullptr ? given : source_dir() + "/config/demo.gguf";
    const auto file = GgufFile::open(path);
    auto data = file ? read_tokenizer_data(*file) : std::unexpected(file.error());
    auto tokenizer = data ? make_tokenizer(std::move(*data)) : std::unexpected(data.error());
    if (!tokenizer) {
      std::fprintf(stderr, "%s: %s\n", path.c_str(), tokenizer.error().message.c_str());
      std::exit(2);
    }
    return std::move(*tokenizer);
  }();
  return *made;
}

std::shared_ptr<const TokenTrie> trie() {
  static const auto made =
      std::make_shared<const TokenTrie>(tokenizer(), tokenizer().vocabulary_size());
  return made;
}

std::shared_ptr<const Grammar> compile(const Example& example) {
  auto compiled = compile_grammar({example.kind, example.source}, trie());
  if (!compiled) {
    std::fprintf(stderr, "%s: %s\n", example.name, compiled.error().message.c_str());
    std::exit(2);
  }
  return std::move(*compiled);
}

double processor_microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Adds the microseconds of every token of the answer.
void answer(const std::shared_ptr<const Grammar>& grammar, const std::vector<TokenId>& tokens,
            std::vector<float>& logits, std::vector<double>& times) {
  GrammarMatcher matcher(grammar);
  for (const TokenId token : tokens) {
    std::ranges::fill(logits, 1.0F);
    const double start = processor_microseconds();
    const auto mask = matcher.allowed();
    if (mask) (*mask)->apply(logits);
    const bool accepted = mask && matcher.accept(token).has_value();
    times.push_back(processor_microseconds() - start);
    if (!accepted || logits[static_cast<size_t>(token)] != 1.0F) {
      std::fprintf(stderr, "\"%s\" is not allowed\n", std::string(trie()->text(token)).c_str());
      std::exit(1);
    }
  }
}

void report(benchmark::State& state, std::vector<double>& times) {
  std::ranges::sort(times);
  double sum = 0;
  for (const double time : times) sum += time;
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  state.counters["mean_us"] = sum / static_cast<double>(times.size());
  state.counters["p50_us"] = at(0.5);
  state.counters["p99_us"] = at(0.99);
  state.counters["max_us"] = times.back();
  state.counters["vocabulary"] = static_cast<double>(trie()->vocabulary_size());
}

std::vector<TokenId> tokens_of(const Example& example) {
  return tokenizer().encode(example.answer, {.add_special = false, .parse_special = false});
}

void masks(benchmark::State& state, const Example& example, bool warm) {
  const std::vector<TokenId> tokens = tokens_of(example);
  std::vector<float> logits(trie()->vocabulary_size());
  std::vector<double> times;
  auto grammar = compile(example);
  if (warm) answer(grammar, tokens, logits, times);
  times.clear();
  for (auto _ : state) {
    if (!warm) {
      state.PauseTiming();
      grammar = compile(example);
      state.ResumeTiming();
    }
    answer(grammar, tokens, logits, times);
  }
  report(state, times);
}

void compilation(benchmark::State& state, const Example& example) {
  static_cast<void>(trie());
  for (auto _ : state) benchmark::DoNotOptimize(compile(example));
}

void make_trie(benchmark::State& state) {
  static_cast<void>(tokenizer());
  for (auto _ : state) {
    const TokenTrie made(tokenizer(), tokenizer().vocabulary_size());
    state.counters["MiB"] = static_cast<double>(made.size_bytes()) / 1048576.0;
    state.counters["nodes"] = static_cast<double>(made.nodes().size());
  }
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  using namespace lockstep;
  benchmark::RegisterBenchmark("trie", make_trie)->Unit(benchmark::kMillisecond);
  for (const Example& example : examples()) {
    const std::string name = example.name;
    const auto add = [&](const std::string& kind, const auto& run) {
      benchmark::RegisterBenchmark((kind + "/" + name).c_str(), run)->Unit(benchmark::kMillisecond);
    };
    add("compile", [&](benchmark::State& state) { compilation(state, example); });
    add("cold", [&](benchmark::State& state) { masks(state, example, false); });
    add("warm", [&](benchmark::State& state) { masks(state, example, true); });
  }
  benchmark::Initialize(&count, arguments);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
