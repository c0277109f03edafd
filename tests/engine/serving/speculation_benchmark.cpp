// Bounds of what drafts give to one stream and take from it: tokens per second without them, with a
// drafter that knows the answer, with one that always errs, and with n-grams over a text that the
// answer does not repeat.
//
//   lockstep_speculation_benchmark MODEL [DRAFT_TOKENS=7 [TOKENS=128 [ROUNDS=3]]]
//
// DRAFT_TOKENS "auto": as many as pay. The rounds go in turns, and of each case the best counts.
// The texts are compared: the program fails where they differ.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/drafting/drafter.h"
#include "engine/engine.h"

namespace lockstep {
namespace {

struct Answered {
  std::vector<TokenId> tokens;
  double seconds = 0;  // from the first token to the last one
};

// Tells the answer, or what it is not.
class RecordedDrafter : public Drafter {
 public:
  RecordedDrafter(const std::vector<TokenId>& answer, size_t prompt, bool errs)
      : answer_(answer), prompt_(prompt), errs_(errs) {}

  void add(std::span<const TokenId> tokens) override { known_ += tokens.size(); }
  size_t draft(std::span<TokenId> drafts) override {
    const auto rest = std::span(answer_).subspan(std::min(answer_.size(), known_ - prompt_));
    const size_t count = std::min(rest.size(), drafts.size());
    for (size_t place = 0; place < count; ++place) {
      drafts[place] = errs_ ? (rest[place] == 1 ? 2 : 1) : rest[place];
    }
    return count;
  }

 private:
  const std::vector<TokenId>& answer_;
  size_t prompt_;
  bool errs_;
  size_t known_ = 0;
};

struct Case {
  const char* name;
  bool speculation = true;
  std::optional<bool> errs = {};  // of a recorded answer; none: n-grams
  double tokens_per_second = 0;
};

Answered answer(Engine& engine, const Case& tried, size_t tokens,
                const std::vector<TokenId>& recorded) {
  Request request;
  for (TokenId token = 1000; token < 1064; ++token) request.prompt.push_back(token);
  request.max_tokens = static_cast<uint32_t>(tokens);
  request.ignore_eos = true;
  request.sampling.temperature = 1;
  request.sampling.seed = 7;
  request.speculation = tried.speculation;
  if (tried.errs) {
    request.make_drafter = [&] {
      return std::make_unique<RecordedDrafter>(recorded, 64, *tried.errs);
    };
  }
  using Clock = std::chrono::steady_clock;
  Answered answered;
  Clock::time_point begin;
  std::promise<void> ended;
  request.on_output = [&](Output&& output) {
    if (answered.tokens.empty()) begin = Clock::now();
    for (const OutputToken& token : output.tokens) answered.tokens.push_back(token.token);
    if (!output.finish) return;
    answered.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    ended.set_value();
  };
  if (const auto id = engine.submit(std::move(request)); !id) {
    std::fprintf(stderr, "%s\n", id.error().message.c_str());
    std::exit(1);
  }
  ended.get_future().wait();
  return answered;
}

std::unique_ptr<Engine> load(const char* model, const std::string& draft_tokens, size_t tokens) {
  EngineOptions options;
  options.model = model;
  options.sequence_count = 4;
  options.context_tokens = static_cast<uint32_t>(64 + tokens);
  if (draft_tokens != "auto") options.draft_tokens = std::stoul(draft_tokens);
  auto engine = Engine::open(options);
  const auto loaded = engine ? (*engine)->load() : Result<void>(std::unexpected(engine.error()));
  if (loaded) return std::move(*engine);
  std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
  return nullptr;
}

int run(std::span<char*> arguments) {
  const auto given = [&](size_t index, const char* otherwise) -> std::string {
    return index < arguments.size() ? arguments[index] : otherwise;
  };
  const size_t tokens = std::stoul(given(3, "128"));
  const size_t rounds = std::stoul(given(4, "3"));
  const auto engine = load(arguments[1], given(2, "7"), tokens);
  if (engine == nullptr) return 1;
  std::array cases = {Case{"no drafts", false}, Case{"always right", true, false},
                      Case{"always wrong", true, true}, Case{"n-grams", true}};
  std::vector<TokenId> recorded = answer(*engine, cases[0], tokens, {}).tokens;
  for (size_t round = 0; round < rounds; ++round) {
    for (Case& tried : cases) {
      const Answered answered = answer(*engine, tried, tokens, recorded);
      if (answered.tokens != recorded) {
        std::fprintf(stderr, "%s: another text\n", tried.name);
        return 1;
      }
      const double speed = static_cast<double>(tokens - 1) / answered.seconds;
      tried.tokens_per_second = std::max(tried.tokens_per_second, speed);
    }
  }
  for (const Case& tried : cases) {
    std::printf("%-14s %8.2f tokens/s  x %.3f\n", tried.name, tried.tokens_per_second,
                tried.tokens_per_second / cases[0].tokens_per_second);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "which model?\n");
    return 2;
  }
  return lockstep::run({arguments, static_cast<size_t>(count)});
}
