// Passes that begin before the last one's tokens are known change nothing that a client sees. On a
// simulated GPU, which runs what it is given as early as a real one may.
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/gpu_engine_fixture.h"
#include "tests/engine/kernels/cuda/launch_stream.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// All that a client is told of a request.
struct Told {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::kError;

  bool operator==(const Told&) const = default;
};

class GpuPassAhead : public OnGpuEngine {
 protected:
  GpuPassAhead() { options_.speculate = "none"; }
  ~GpuPassAhead() override {
    engine_.reset();
    host_gpu(0).reset();
  }

  static Told told_by(Answer& answer) {
    Told told;
    told.finish = answer.wait();
    told.text = answer.text();
    for (const OutputToken& token : answer.tokens()) {
      told.tokens.push_back(token.token);
      if (token.logprob == token.logprob) told.logprobs.push_back(token.logprob);
    }
    return told;
  }

  // All of them side by side, from one pass on.
  std::vector<Told> answers_of(const std::vector<Request>& requests) {
    NewsGate gate;
    Answer holding;
    hold(gate, holding);
    std::vector<Answer> answers(requests.size());
    for (size_t index = 0; index < requests.size(); ++index) {
      submit(requests[index], answers[index]);
    }
    gate.open();
    std::vector<Told> told;
    for (Answer& answer : answers) told.push_back(told_by(answer));
    holding.wait();
    return told;
  }

  // Each by itself, and then all of them side by side.
  std::vector<Told> all_answers_of(const std::vector<Request>& requests) {
    std::vector<Told> told;
    for (const Request& request : requests) {
      Answer answer;
      submit(request, answer);
      told.push_back(told_by(answer));
    }
    for (Told& one : answers_of(requests)) told.push_back(std::move(one));
    return told;
  }

  // A request that ends by its length.
  Told told_by_length() {
    Answer answer;
    submit(request("Once upon a time", 12), answer);
    return told_by(answer);
  }

  // `work` of an engine without passes ahead, and of one with them.
  template <typename Work>
  void expect_same(const Work& work) {
    options_.gpu_pass_ahead = false;
    const auto expected = work();
    EXPECT_EQ(engine().statistics().steps_ahead, 0U);
    engine_.reset();
    options_.gpu_pass_ahead = true;
    const auto told = work();
    EXPECT_GT(engine().statistics().steps_ahead, 0U);
    EXPECT_EQ(engine().statistics().steps_repeated, 0U);
    ASSERT_EQ(told.size(), expected.size());
    for (size_t index = 0; index < told.size(); ++index) {
      SCOPED_TRACE(index);
      EXPECT_EQ(told[index].text, expected[index].text);
      EXPECT_EQ(told[index].tokens, expected[index].tokens);
      EXPECT_EQ(told[index].logprobs, expected[index].logprobs);
      EXPECT_EQ(told[index].finish, expected[index].finish);
    }
  }
};

// Ways that the GPU's pick settles, and ways that it does not.
TEST_F(GpuPassAhead, answers_are_the_same_for_every_way_to_sample) {
  const std::vector<SamplingParameters> ways = {
      {.temperature = 0},
      {.temperature = 1, .seed = 5},
      {.temperature = 3, .seed = 6},
      {.temperature = 1, .min_p = 0.05F, .seed = 7},
      {.temperature = 1, .top_p = 0.9F, .seed = 8},
      {.temperature = 2, .top_k = 20, .seed = 9},
      {.temperature = 0, .presence_penalty = 2, .repetition_penalty = 1.5F},
      {.temperature = 1, .frequency_penalty = 1, .seed = 10},
      {.temperature = 1, .logit_bias = {{5, 1.0F}}, .seed = 11},
  };
  expect_same([&] {
    std::vector<Request> requests;
    for (const SamplingParameters& way : ways) {
      requests.push_back(request("Once upon a time", 9));
      requests.back().sampling = way;
    }
    return all_answers_of(requests);
  });
}

TEST_F(GpuPassAhead, answers_are_the_same_however_they_end_and_whatever_is_told) {
  expect_same([&] {
    std::vector<Request> requests;
    const auto add = [&](uint32_t tokens) -> Request& {
      requests.push_back(request("There was another", tokens, 20 + requests.size()));
      return requests.back();
    };
    const Told whole = [&] {
      Answer answer;
      submit(add(14), answer);
      return told_by(answer);
    }();
    for (const uint32_t tokens : {0U, 1U, 2U, 3U, 14U}) add(tokens).sampling.seed = 20;
    Request& by_string = add(14);
    by_string.sampling.seed = 20;
    by_string.stop = {whole.text.substr(whole.text.size() / 2, 3)};
    Request& by_token = add(14);
    by_token.sampling.seed = 20;
    by_token.stop_tokens = {whole.tokens[6]};
    Request& not_yet = add(14);
    not_yet.sampling.seed = 20;
    not_yet.stop_tokens = {whole.tokens[3], whole.tokens[8]};
    not_yet.min_tokens = 6;
    add(60).ignore_eos = false;
    add(9).logprobs = 2;
    add(6).prompt_logprobs = 1;
    const auto grammar = engine().compile_grammar({GrammarSource::Kind::kRegex, "[a-z ]{5}"});
    EXPECT_TRUE(grammar.has_value());
    add(20).grammar = *grammar;
    return all_answers_of(requests);
  });
}

// Streams alone are side by side, so that most passes begin ahead; they end one after the other.
TEST_F(GpuPassAhead, answers_are_the_same_while_others_end_and_begin) {
  options_.sequence_count = 3;
  expect_same([&] {
    std::vector<Request> requests;
    for (uint32_t index = 0; index < 8; ++index) {
      requests.push_back(request(index % 2 == 0 ? "Once upon" : "A day", 5 + 9 * (index % 4)));
      requests.back().sampling = {.temperature = index % 3 == 0 ? 0.0F : 1.0F, .seed = 30 + index};
    }
    return answers_of(requests);
  });
}

// Three sequences of three pages each, and six pages.
TEST_F(GpuPassAhead, answers_are_the_same_where_some_give_up_their_pages) {
  options_.kv_pages = 6;
  uint64_t preemptions = 0;
  expect_same([&] {
    std::vector<Request> requests;
    for (uint32_t index = 0; index < 3; ++index) {
      requests.push_back(request(std::string("Once upon a time ") + "abc"[index], 140));
      requests.back().sampling = {.temperature = 1, .seed = 40 + index};
    }
    auto told = answers_of(requests);
    preemptions = engine().statistics().preemptions;
    return told;
  });
  EXPECT_GT(preemptions, 0U);
}

// A conversation finds the pages of its earlier turns, which passes ahead have written.
TEST_F(GpuPassAhead, a_prefix_that_passes_ahead_have_written_is_found) {
  uint32_t cached = 0;
  expect_same([&] {
    Answer first;
    Request asked = request("Once upon a time", 90);
    const std::vector<TokenId> prompt = asked.prompt;
    submit(std::move(asked), first);
    std::vector<Told> told = {told_by(first)};
    Request next = request("x", 20);
    next.prompt = prompt;
    next.prompt.insert(next.prompt.end(), told[0].tokens.begin(), told[0].tokens.end());
    Answer second;
    submit(std::move(next), second);
    told.push_back(told_by(second));
    cached = second.cached();
    return told;
  });
  if (engine().model().arithmetic != "gpu") {
    EXPECT_GE(cached, 64U);
  }
}

// One draft per pass where text repeats itself: what is drafted begins a pass later, and that pass
// is not promised.
TEST_F(GpuPassAhead, answers_are_the_same_with_drafts) {
  options_.speculate = "ngram";
  options_.draft_tokens = 3;
  uint64_t accepted = 0;
  expect_same([&] {
    std::vector<Request> requests;
    for (uint32_t index = 0; index < 3; ++index) {
      requests.push_back(request("one two three one two three one two", 40));
      requests.back().sampling = {.temperature = index == 0 ? 0.0F : 1.0F, .seed = 50 + index};
    }
    auto told = all_answers_of(requests);
    accepted = 0;
    for (const DraftStatistics& drafts : engine().statistics().drafts) {
      for (const uint64_t tokens : drafts.accepted_tokens) accepted += tokens;
    }
    return told;
  });
  EXPECT_GT(accepted, 0U);
}

// It hears of it with the pass ahead on its way; the others go on.
TEST_F(GpuPassAhead, answers_are_the_same_beside_one_that_is_cancelled) {
  expect_same([&] {
    std::vector<Answer> answers(3);
    NewsGate gate;
    Answer holding;
    hold(gate, holding);
    Request leaving = request("Once upon a time", 100);
    auto id = std::make_shared<RequestId>(0);
    size_t tokens = 0;
    leaving.on_output = [this, id, &tokens, pass = answers[0].callback()](Output&& output) {
      tokens += output.tokens.size();
      if (tokens == 5 && !output.finish) engine_->cancel(*id);
      pass(std::move(output));
    };
    const auto submitted = engine().submit(std::move(leaving));
    EXPECT_TRUE(submitted.has_value());
    *id = *submitted;
    submit(request("Once", 30), answers[1]);
    submit(request("A day", 25), answers[2]);
    gate.open();
    std::vector<Told> told;
    for (Answer& answer : answers) told.push_back(told_by(answer));
    EXPECT_EQ(told[0].finish, FinishReason::kCancelled);
    holding.wait();
    return told;
  });
}

// The pass that has begun ahead for the ended stream does not keep the engine busy.
TEST_F(GpuPassAhead, an_engine_whose_only_stream_has_ended_is_idle) {
  Answer answer;
  Request asked = request("Once upon a time", 100);
  asked.stop_tokens = {told_by_length().tokens[4]};
  submit(std::move(asked), answer);
  EXPECT_EQ(answer.wait(), FinishReason::kStop);
  const auto measured = engine().measure({.prompt_tokens = 4, .generated_tokens = 2});
  EXPECT_TRUE(measured.has_value()) << measured.error().message;
  EXPECT_FALSE(answer_to(request("Once", 5)).empty());
}

// The kernels of a GPU that leaves another token for the next pass than it tells of.
const GpuPlatform& platform_with_wrong_picks() {
  static const GpuKernels kernels = [] {
    GpuKernels wrong = *test_gpus().kernels;
    wrong.draw_tokens = [](void* stream, const GpuDraw& draw) {
      test_gpus().kernels->draw_tokens(stream, draw);
      static_cast<LaunchStream*>(stream)->enqueue_library([draw] {
        const size_t first = draw.result_offset == nullptr ? 0 : *draw.result_offset;
        auto* const drawn =
            reinterpret_cast<GpuDrawn*>(reinterpret_cast<std::byte*>(draw.drawn) + first);
        for (uint32_t row = 0; row < *draw.row_count; ++row) {
          draw.picks[row] ^= 1U;
          drawn[row].pick ^= 1;
        }
      });
    };
    return wrong;
  }();
  static const GpuPlatform platform = [] {
    GpuPlatform wrong = test_gpus();
    wrong.kernels = &kernels;
    return wrong;
  }();
  return platform;
}

TEST_F(GpuPassAhead, a_pass_that_has_begun_with_a_wrong_token_is_computed_again_and_counted) {
  const auto requests = [&] {
    std::vector<Request> asked;
    for (uint32_t index = 0; index < 3; ++index) {
      asked.push_back(request("Once upon a time", 10 + index));
      asked.back().sampling = {.temperature = index == 0 ? 0.0F : 1.0F, .seed = 60 + index};
    }
    return asked;
  };
  const std::vector<Told> expected = all_answers_of(requests());
  engine_.reset();
  machine_->gpu_platform = &platform_with_wrong_picks();
  EXPECT_EQ(all_answers_of(requests()), expected);
  EXPECT_GT(engine().statistics().steps_repeated, 10U);
  EXPECT_EQ(engine().statistics().steps_repeated, engine().statistics().steps_ahead);
}

// Whenever it is lost: every request ends and says why, and the engine can be ended.
TEST_F(GpuPassAhead, a_gpu_that_is_lost_ends_the_engine_at_any_call) {
  for (size_t calls = 0; calls < 30; ++calls) {
    SCOPED_TRACE(calls);
    Answer answers[2];
    engine();
    NewsGate gate;
    Answer holding;
    hold(gate, holding, 100);
    for (Answer& answer : answers) submit(request("Once", 100), answer);
    host_gpu(0).lose(calls);
    gate.open();
    for (Answer* answer : {&holding, &answers[0], &answers[1]}) {
      EXPECT_EQ(answer->wait(), FinishReason::kError);
      EXPECT_THAT(answer->error(), HasSubstr("gpu0"));
    }
    EXPECT_TRUE(engine().failure().has_value());
    engine_.reset();
    EXPECT_EQ(host_gpu(0).counts().allocated_bytes, 0U);
    host_gpu(0).reset();
  }
}

}  // namespace
}  // namespace lockstep
