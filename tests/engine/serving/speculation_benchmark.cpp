// The gain of drafts, and their price: tokens per second without them, with a drafter
// that knows the answer, with one that always errs, with n-grams over a text that the answer does
// not repeat and over one that it does, from an earlier answer, and with a smaller model.
//
//   lockstep_speculation_benchmark MODEL [DRAFT_TOKENS=7 [TOKENS=128 [ROUNDS=3
//                                  [STREAMS=1 [DRAFT_MODEL]]]]]
//
// DRAFT_TOKENS "auto": as many as pay. STREAMS run side by side; their speeds add up, from the last
// one's first token to the last one's end. With a DRAFT_MODEL it is compared with no drafts alone:
// scripts/models/make_draft_pair.py makes pairs that are right as often as asked. An answer repeats
// its prompt with one line changed where the model goes on by the last token alone, as that
// script's do. The rounds go in turns, and of each case the median counts. The texts are compared:
// the program fails where they differ.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/drafting/drafter.h"
#include "engine/engine.h"

namespace lockstep {
namespace {

struct Answered {
  std::vector<std::vector<TokenId>> tokens;  // by stream
  double tokens_per_second = 0;
  double outside = 0;  // of the time, what is in no pass: to sample, to draft, to schedule
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
  std::optional<bool> errs = {};  // of a recorded answer; none: the engine's drafters
  bool copies = false;            // the answer's text stands in the prompt, with one line changed
  bool asks_again = false;        // the tenant has had the same answer; else it has had none
  std::vector<double> speeds = {};
  std::vector<double> outside = {};
};

constexpr size_t kPromptTokens = 64;
constexpr size_t kLineTokens = 8;

// Streams that run side by side, as their news comes.
class Streams {
 public:
  using Clock = std::chrono::steady_clock;

  Streams(const Engine& engine, size_t count) : engine_(engine), begun_(count), left_(count) {
    answered_.tokens.resize(count);
  }

  // On the engine's thread.
  void hear(size_t stream, Output&& output) {
    const auto now = Clock::now();
    for (const OutputToken& token : output.tokens) {
      answered_.tokens[stream].push_back(token.token);
      counted_ += begun_ == 0 ? 1 : 0;
      if (answered_.tokens[stream].size() > 1 || --begun_ > 0) continue;
      begin_ = now;
      seconds_before_ = seconds_in_passes();
    }
    if (!output.finish || --left_ > 0) return;
    const std::chrono::duration<double> taken = now - begin_;
    answered_.tokens_per_second = static_cast<double>(counted_) / taken.count();
    answered_.outside = 1 - (seconds_in_passes() - seconds_before_) / taken.count();
    ended_.set_value();
  }
  Answered wait() {
    ended_.get_future().wait();
    return answered_;
  }

 private:
  // The model's, and those of one that drafts.
  double seconds_in_passes() const {
    const EngineStatistics statistics = engine_.statistics();
    return statistics.step_seconds.sum + statistics.draft_stage_seconds;
  }

  const Engine& engine_;
  Answered answered_;
  double seconds_before_ = 0;
  size_t begun_;        // that have yet to begin
  size_t left_;         // that have yet to end
  size_t counted_ = 0;  // tokens since all have begun
  Clock::time_point begin_;
  std::promise<void> ended_;
};

// A text whose middle line is another one.
std::vector<TokenId> with_a_line_changed(std::vector<TokenId> text) {
  const size_t begin = text.size() / 2;
  for (size_t index = begin; index < std::min(text.size(), begin + kLineTokens); ++index) {
    text[index] = static_cast<TokenId>(500 + index);
  }
  return text;
}

Answered answer(Engine& engine, const Case& tried, size_t tokens, size_t streams,
                const std::vector<std::vector<TokenId>>& recorded) {
  static size_t asked = 0;
  ++asked;
  Streams heard(engine, streams);
  for (size_t stream = 0; stream < streams; ++stream) {
    Request request;
    if (tried.copies) request.prompt = with_a_line_changed(recorded[stream]);
    const auto first = static_cast<TokenId>(1000 + kPromptTokens * stream);
    for (size_t index = 0; index < kPromptTokens; ++index) {
      request.prompt.push_back(first + static_cast<TokenId>(index));
    }
    request.tenant = tried.asks_again ? "one" : "one of " + std::to_string(asked);
    request.max_tokens = static_cast<uint32_t>(tokens);
    request.ignore_eos = true;
    request.sampling.temperature = 1;
    request.sampling.seed = 7 + stream;
    request.speculation = tried.speculation;
    if (tried.errs) {
      request.make_drafter = [&, stream] {
        return std::make_unique<RecordedDrafter>(recorded[stream], kPromptTokens, *tried.errs);
      };
    }
    request.on_output = [&heard, stream](Output&& output) {
      heard.hear(stream, std::move(output));
    };
    if (const auto id = engine.submit(std::move(request)); !id) {
      std::fprintf(stderr, "%s\n", id.error().message.c_str());
      std::exit(1);
    }
  }
  return heard.wait();
}

struct Arguments {
  std::string model;
  std::string draft_tokens = "7";
  size_t tokens = 128;
  size_t rounds = 3;
  size_t streams = 1;
  std::string draft_model = {};
};

Arguments read(std::span<char*> given) {
  Arguments arguments{.model = given[1]};
  if (given.size() > 2) arguments.draft_tokens = given[2];
  if (given.size() > 3) arguments.tokens = std::stoul(given[3]);
  if (given.size() > 4) arguments.rounds = std::stoul(given[4]);
  if (given.size() > 5) arguments.streams = std::stoul(given[5]);
  if (given.size() > 6) arguments.draft_model = given[6];
  return arguments;
}

std::unique_ptr<Engine> load(const Arguments& arguments) {
  EngineOptions options;
  options.model = arguments.model;
  options.sequence_count = static_cast<uint32_t>(std::max<size_t>(4, arguments.streams));
  options.context_tokens = static_cast<uint32_t>(kPromptTokens + 2 * arguments.tokens);
  options.draft_model = arguments.draft_model;
  if (arguments.draft_tokens != "auto") options.draft_tokens = std::stoul(arguments.draft_tokens);
  auto engine = Engine::open(options);
  const auto loaded = engine ? (*engine)->load() : Result<void>(std::unexpected(engine.error()));
  if (loaded) return std::move(*engine);
  std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
  return nullptr;
}

std::vector<Case> cases_of(const Arguments& arguments) {
  if (!arguments.draft_model.empty()) return {{"no drafts", false}, {"draft model", true}};
  return {{"no drafts", false},
          {"always right", true, false},
          {"always wrong", true, true},
          {"n-grams", true},
          {"an earlier answer", true, {}, /*copies=*/false, /*asks_again=*/true},
          {"a copy, no drafts", false, {}, /*copies=*/true},
          {"a copy, n-grams", true, {}, /*copies=*/true}};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void print_acceptance(const Engine& engine) {
  const EngineStatistics statistics = engine.statistics();
  const DraftStatistics& counted = statistics.drafts[static_cast<size_t>(DraftSource::kModel)];
  if (counted.drafts == 0) return;
  std::printf("accepted of those drafted, by place:");
  for (size_t place = 0; place < kDraftTokensMost && counted.tokens[place] > 0; ++place) {
    std::printf(" %.3f", static_cast<double>(counted.accepted_tokens[place]) /
                             static_cast<double>(counted.tokens[place]));
  }
  std::printf("\n%.2f s in the draft model's passes\n", statistics.draft_stage_seconds);
}

int run(std::span<char*> given) {
  const Arguments arguments = read(given);
  const auto engine = load(arguments);
  if (engine == nullptr) return 1;
  std::vector<Case> cases = cases_of(arguments);
  const auto answered = [&](const Case& tried, const std::vector<std::vector<TokenId>>& recorded) {
    return answer(*engine, tried, arguments.tokens, arguments.streams, recorded);
  };
  const std::vector<std::vector<TokenId>> recorded = answered(cases[0], {}).tokens;
  const auto is_copied = [&] { return answered(cases.back(), recorded).tokens == recorded; };
  if (cases.back().copies && !is_copied()) {
    std::erase_if(cases, [](const Case& tried) { return tried.copies; });
  }
  for (const Case& tried : cases) {
    if (tried.asks_again) answered(tried, recorded);  // what is asked again has been asked before
  }
  for (size_t round = 0; round < arguments.rounds; ++round) {
    for (Case& tried : cases) {
      const Answered heard = answered(tried, recorded);
      if (heard.tokens != recorded) {
        std::fprintf(stderr, "%s: another text\n", tried.name);
        return 1;
      }
      tried.speeds.push_back(heard.tokens_per_second);
      tried.outside.push_back(heard.outside);
    }
  }
  for (const Case& tried : cases) {
    const Case& plain = *std::ranges::find(cases, tried.copies, &Case::copies);
    std::vector<double> ratios;  // to what was measured beside it
    for (size_t round = 0; round < arguments.rounds; ++round) {
      ratios.push_back(tried.speeds[round] / plain.speeds[round]);
    }
    std::printf("%-17s %8.2f tokens/s  x %.3f, %.2f %% of the time in no pass\n", tried.name,
                median(tried.speeds), median(ratios), 100 * median(tried.outside));
  }
  print_acceptance(*engine);
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
