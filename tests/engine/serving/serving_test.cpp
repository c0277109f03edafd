// Requests that share the machine: prefixes, pages that run out, deadlines, full queues, broken
// numbers, and whether the engine can be seen to go on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/gguf_file.h"
#include "engine/serving/throughput.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep {
namespace {

class ServingTest : public EngineTest {
 protected:
  ServingTest() { options_.context_tokens = 320; }

  struct Heard {
    std::string text;
    std::vector<float> logprobs;
    uint32_t cached = 0;

    bool operator==(const Heard& other) const {
      return text == other.text && logprobs == other.logprobs;
    }
  };

  Heard hear(Request request) {
    Answer answer;
    request.logprobs = 0;
    submit(std::move(request), answer);
    EXPECT_EQ(answer.wait(), FinishReason::kLength);
    return heard(answer);
  }
  static Heard heard(const Answer& answer) {
    Heard result{answer.text(), {}, answer.cached()};
    for (const OutputToken& token : answer.tokens()) result.logprobs.push_back(token.logprob);
    return result;
  }
  // Whether prompts and generation are one function: only then can a prompt begin with what was
  // generated.
  static bool are_one_function(std::string_view arithmetic) {
    return arithmetic == "exact" || !choose_kernel_table(kernel_row()).value()->has_tiles;
  }
  void wait_until(const std::function<bool()>& done) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
};

TEST_F(ServingTest, an_answer_from_the_cache_has_the_bits_of_a_cold_one) {
  for (const char* arithmetic : {"exact", "fast"}) {
    SCOPED_TRACE(arithmetic);
    options_.arithmetic = arithmetic;
    const std::string prompt(150, 'h');
    std::vector<Heard> cold;
    for (const char* tail : {"", " one", " another"}) {
      engine_.reset();
      cold.push_back(hear(request(prompt + tail, 80)));
      EXPECT_EQ(cold.back().cached, 0U);
    }
    engine_.reset();
    EXPECT_EQ(hear(request(prompt, 80)), cold[0]);
    const Heard again = hear(request(prompt, 80));
    EXPECT_EQ(again, cold[0]);
    EXPECT_EQ(again.cached, 128U);
    EXPECT_EQ(hear(request(prompt + " one", 80)), cold[1]);
    EXPECT_EQ(hear(request(prompt + " another", 80)), cold[2]);
    const EngineStatistics statistics = engine().statistics();
    EXPECT_EQ(statistics.prefix_hit_tokens, 3 * 128U);
    EXPECT_EQ(statistics.prompt_tokens + statistics.prefix_hit_tokens,
              statistics.prefix_query_tokens);
    // An end is told a moment before its pages are let go.
    const size_t prompted = 2;
    const size_t cached = are_one_function(arithmetic) ? 4 : prompted;
    wait_until([&] { return engine().statistics().kv_pages_cached >= cached; });
  }
}

// A conversation: what was generated is part of the next prompt.
TEST_F(ServingTest, a_next_turn_has_the_bits_of_a_cold_one) {
  for (const char* arithmetic : {"exact", "fast"}) {
    SCOPED_TRACE(arithmetic);
    options_.arithmetic = arithmetic;
    engine_.reset();
    Request first = request(std::string(70, 'c'), 90);
    std::vector<TokenId> turn = first.prompt;
    Answer answer;
    first.logprobs = 0;
    submit(std::move(first), answer);
    answer.wait();
    for (const OutputToken& token : answer.tokens()) turn.push_back(token.token);
    turn.push_back(turn.front());
    const auto next = [&] {
      Request asked = request("", 40);
      asked.prompt = turn;
      return hear(std::move(asked));
    };
    const Heard warm = next();
    EXPECT_EQ(warm.cached, are_one_function(arithmetic) ? 128U : 64U);
    engine_.reset();
    EXPECT_EQ(next(), warm);
  }
}

TEST_F(ServingTest, no_tenant_finds_what_another_has_sent) {
  const auto cached = [&](const std::string& tenant, const std::string& salt) {
    Request asked = request(std::string(150, 's'), 2);
    asked.cache_owner = tenant;
    asked.cache_salt = salt;
    return hear(std::move(asked)).cached;
  };
  EXPECT_EQ(cached("alice", ""), 0U);
  EXPECT_EQ(cached("bob", ""), 0U);
  EXPECT_EQ(cached("", "alice"), 0U);
  EXPECT_EQ(cached("alice", "salt"), 0U);
  EXPECT_EQ(cached("alice", ""), 128U);
  EXPECT_EQ(cached("alice", "salt"), 128U);
}

TEST_F(ServingTest, tenants_that_share_prefixes_take_turns) {
  options_.sequence_count = 1;
  std::mutex mutex;
  std::vector<std::string> order;
  std::array<Answer, 5> answers;
  const auto ask = [&](const std::string& tenant, Answer& answer) {
    Request asked = request("of " + tenant, 2);
    asked.tenant = tenant;
    asked.on_output = [&, tenant, collect = answer.callback()](Output&& output) {
      if (output.finish) {
        const std::lock_guard lock(mutex);
        order.push_back(tenant);
      }
      collect(std::move(output));
    };
    ASSERT_TRUE(engine().submit(std::move(asked)).has_value());
  };
  NewsGate gate;
  hold(gate, answers[0]);
  for (size_t number = 1; number < 4; ++number) ask("many", answers[number]);
  ask("few", answers[4]);
  gate.open();
  for (Answer& answer : answers) answer.wait();
  EXPECT_EQ(order, (std::vector<std::string>{"many", "few", "many", "many"}));
}

TEST_F(ServingTest, what_a_measurement_wrote_over_is_not_found) {
  const Heard before = hear(request(std::string(150, 'm'), 20));
  ASSERT_TRUE(engine().measure({.prompt_tokens = 200, .generated_tokens = 4}).has_value());
  const Heard after = hear(request(std::string(150, 'm'), 20));
  EXPECT_EQ(after, before);
  EXPECT_EQ(after.cached, 0U);
}

TEST_F(ServingTest, wanted_prompt_logprobs_are_computed_whatever_is_cached) {
  const auto prompt_logprobs = [&] {
    Request asked = request(std::string(100, 'p') + "the end", 0);
    asked.prompt_logprobs = 0;
    Answer answer;
    submit(std::move(asked), answer);
    answer.wait();
    EXPECT_EQ(answer.cached(), 0U);
    std::vector<float> logprobs;
    for (const OutputToken& token : answer.prompt()) logprobs.push_back(token.logprob);
    logprobs.erase(logprobs.begin());
    return logprobs;
  };
  const auto first = prompt_logprobs();
  EXPECT_EQ(first.size(), 105U);
  EXPECT_EQ(prompt_logprobs(), first);
}

TEST_F(ServingTest, choices_of_one_prompt_compute_it_once) {
  options_.batch_tokens = 256;
  std::vector<Request> requests;
  std::vector<std::unique_ptr<Answer>> answers;
  for (uint64_t choice = 0; choice < 4; ++choice) {
    answers.push_back(std::make_unique<Answer>());
    requests.push_back(request(std::string(200, 'n'), 5, choice));
    requests.back().on_output = answers.back()->callback();
  }
  ASSERT_EQ(engine().submit_all(std::move(requests))->size(), 4U);
  for (auto& answer : answers) EXPECT_EQ(answer->wait(), FinishReason::kLength);
  EXPECT_EQ(engine().statistics().prefix_hit_tokens, 3 * 192U);
}

TEST_F(ServingTest, answers_are_the_same_where_pages_run_out) {
  for (const char* arithmetic : {"exact", "fast"}) {
    SCOPED_TRACE(arithmetic);
    options_.arithmetic = arithmetic;
    std::vector<Heard> alone;
    options_.kv_pages = 0;
    engine_.reset();
    for (uint64_t index = 0; index < 6; ++index) {
      alone.push_back(hear(request(std::string(20 + 15 * index, 'a'), 180, index)));
    }
    options_.kv_pages = 7;  // 5 for the longest of them
    engine_.reset();
    std::vector<Request> requests;  // of one call, so that they begin together
    std::vector<std::unique_ptr<Answer>> answers;
    for (uint64_t index = 0; index < 6; ++index) {
      answers.push_back(std::make_unique<Answer>());
      requests.push_back(request(std::string(20 + 15 * index, 'a'), 180, index));
      requests.back().logprobs = 0;
      requests.back().on_output = answers.back()->callback();
    }
    ASSERT_TRUE(engine().submit_all(std::move(requests)).has_value());
    for (size_t index = 0; index < answers.size(); ++index) {
      EXPECT_EQ(answers[index]->wait(), FinishReason::kLength);
      EXPECT_EQ(heard(*answers[index]), alone[index]) << index;
    }
    EXPECT_GT(engine().statistics().preemptions, 0U);
  }
}

// The loop tells the scheduler what passes take. Where a stream may wait for long, a chunk is
// limited by what has been measured alone: each may be twice as long as the one before.
TEST_F(ServingTest, chunks_beside_a_stream_grow_as_passes_are_measured) {
  options_.batch_tokens = 512;
  options_.first_token_target_seconds = 0.001;
  options_.token_target_seconds = 1000;
  Answer stream;
  submit(request("s", 250), stream);
  stream.wait_for_text();
  Answer prompt;
  submit(request(std::string(300, 'p'), 1), prompt);
  prompt.wait();
  stream.wait();
  const HistogramSnapshot passes = engine().statistics().step_tokens;
  uint64_t large = 0;
  for (size_t bucket = 0; bucket < passes.bucket_counts.size(); ++bucket) {
    if (bucket > 0 && passes.upper_bounds[bucket - 1] >= 64) large += passes.bucket_counts[bucket];
  }
  EXPECT_GT(large, 0U);
}

TEST_F(ServingTest, a_context_that_does_not_fit_the_pages_is_refused) {
  options_.kv_pages = 4;
  const auto refused = Engine::open(options_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
  EXPECT_NE(refused.error().message.find("kv-pages is 4"), std::string::npos);
}

TEST_F(ServingTest, a_request_ends_at_its_deadline) {
  Answer answer;
  Request endless = request("x", 300);
  // Its own thread is what makes it slow.
  endless.deadline_seconds = 0.05;
  endless.on_output = [pass = answer.callback()](Output&& output) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pass(std::move(output));
  };
  ASSERT_TRUE(engine().submit(std::move(endless)).has_value());
  EXPECT_EQ(answer.wait(), FinishReason::kDeadline);
  EXPECT_EQ(engine().statistics().finished_deadline, 1U);
}

TEST_F(ServingTest, a_request_that_waits_past_its_deadline_is_not_computed) {
  options_.sequence_count = 1;
  NewsGate gate;
  Answer first;
  ASSERT_NO_FATAL_FAILURE(hold(gate, first));
  Answer late;
  Request waiting = request(std::string(50, 'w'), 2);
  waiting.deadline_seconds = 0.001;
  submit(std::move(waiting), late);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the deadline itself
  gate.open();
  EXPECT_EQ(late.wait(), FinishReason::kDeadline);
  EXPECT_EQ(first.wait(), FinishReason::kLength);
  EXPECT_EQ(engine().statistics().prompt_tokens, engine().tokenizer().encode("hold", {}).size());
  EXPECT_EQ(engine().statistics().waiting_prompt_tokens, 0U);
}

TEST_F(ServingTest, full_queues_refuse_whole_calls_and_say_when_to_come_again) {
  options_.sequence_count = 1;
  options_.waiting_requests = 3;
  options_.waiting_prompt_tokens = 100;
  EXPECT_FALSE(answer_to(request("how fast it is", 4)).empty());
  NewsGate gate;
  Answer first;
  ASSERT_NO_FATAL_FAILURE(hold(gate, first));
  wait_until([&] { return engine().statistics().waiting_prompt_tokens == 0; });
  Answer second;
  submit(request(std::string(90, 'q'), 1), second);
  const auto tokens = engine().submit(request(std::string(20, 'q'), 1));
  ASSERT_FALSE(tokens.has_value());
  EXPECT_EQ(tokens.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(tokens.error().message.find("90"), std::string::npos) << tokens.error().message;
  ASSERT_TRUE(tokens.error().retry_after_seconds.has_value());
  EXPECT_GE(*tokens.error().retry_after_seconds, 1);
  EXPECT_LE(*tokens.error().retry_after_seconds, 60);
  // Three are too many, so none of them is taken; two are not.
  std::vector<std::unique_ptr<Answer>> answers;
  const auto several = [&](size_t count) {
    std::vector<Request> requests;
    for (size_t index = 0; index < count; ++index) {
      answers.push_back(std::make_unique<Answer>());
      requests.push_back(request("q", 1));
      requests.back().on_output = answers.back()->callback();
    }
    return engine().submit_all(std::move(requests));
  };
  EXPECT_FALSE(several(3).has_value());
  answers.clear();
  EXPECT_TRUE(several(2).has_value());
  const EngineStatistics statistics = engine().statistics();
  EXPECT_EQ(statistics.rejected[static_cast<size_t>(Rejection::kQueueTokens)], 1U);
  EXPECT_EQ(statistics.rejected[static_cast<size_t>(Rejection::kQueueRequests)], 1U);
  gate.open();
  EXPECT_EQ(first.wait(), FinishReason::kLength);
  EXPECT_EQ(second.wait(), FinishReason::kLength);
  for (auto& answer : answers) EXPECT_EQ(answer->wait(), FinishReason::kLength);
  // A prompt of any length is taken when none waits.
  EXPECT_FALSE(answer_to(request(std::string(150, 'q'), 4)).empty());
}

TEST_F(ServingTest, what_may_wait_can_be_changed_while_it_runs) {
  options_.sequence_count = 1;
  options_.waiting_requests = 0;
  NewsGate gate;
  Answer first;
  ASSERT_NO_FATAL_FAILURE(hold(gate, first));
  wait_until([&] { return engine().statistics().waiting_prompt_tokens == 0; });
  EXPECT_FALSE(engine().submit(request("q", 1)).has_value());
  engine().set_waiting_limits(2, 10);
  Answer second;
  submit(request("qqqqqqqq", 1), second);
  EXPECT_FALSE(engine().submit(request("qqqqqqqq", 1)).has_value());  // more than 10 tokens
  engine().set_waiting_limits(2, 1000);
  Answer third;
  submit(request("qqqqqqqq", 1), third);
  engine().set_waiting_limits(0, 0);  // what waits stays
  EXPECT_FALSE(engine().submit(request("q", 1)).has_value());
  gate.open();
  for (Answer* answer : {&first, &second, &third}) {
    EXPECT_EQ(answer->wait(), FinishReason::kLength);
  }
}

TEST_F(ServingTest, the_heartbeat_goes_on_when_idle_and_not_when_held_up) {
  const double start = engine().statistics().heartbeat_timestamp_seconds;
  EXPECT_GT(start, 1e9);
  wait_until([&] { return engine().statistics().heartbeat_timestamp_seconds > start + 0.1; });
  NewsGate gate;
  Answer answer;
  ASSERT_NO_FATAL_FAILURE(hold(gate, answer));
  wait_until([&] { return engine().statistics().heartbeat_age_seconds > 1; });
  const std::string stuck = engine().describe_batch();
  EXPECT_TRUE(stuck.starts_with("sampling, ")) << stuck;
  EXPECT_NE(stuck.find("of 1 sequences, 4 prompt and 0 generated tokens"), std::string::npos)
      << stuck;
  gate.open();
  answer.wait();
  wait_until([&] { return engine().statistics().heartbeat_age_seconds < 1; });
}

// A copy of the model in which one token's embedding holds no numbers.
class BrokenToken {
 public:
  BrokenToken(const std::filesystem::path& model, TokenId token, uint16_t value)
      : path_(std::filesystem::temp_directory_path() /
              ("lockstep-broken-" + std::to_string(getpid()) + ".gguf")) {
    std::filesystem::copy_file(model, path_, std::filesystem::copy_options::overwrite_existing);
    const auto file = GgufFile::open(model);
    if (!file) throw std::runtime_error(file.error().message);
    const GgufTensor* tensor = file->find_tensor("token_embd.weight");
    const size_t columns = tensor->columns();
    std::fstream stream(path_, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(tensor->offset +
                                             static_cast<size_t>(token) * columns * sizeof value));
    for (size_t column = 0; column < columns; ++column) {
      stream.write(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  ~BrokenToken() { std::filesystem::remove(path_); }
  BrokenToken(const BrokenToken&) = delete;
  BrokenToken& operator=(const BrokenToken&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST_F(ServingTest, numbers_that_are_none_end_their_request_alone_and_are_not_cached) {
  const TokenId broken = request("Q", 1).prompt.back();
  const std::vector<TokenId> good_prompt = request(std::string(100, 'g'), 1).prompt;
  const auto good = [&](uint64_t seed) {
    Request asked = request("", 30, seed);
    asked.prompt = good_prompt;
    asked.sampling.logit_bias = {{broken, -100.0F}};
    return asked;
  };
  const Heard alone = hear(good(3));
  for (const uint16_t value : {uint16_t{0x7e00}, uint16_t{0x7c00}}) {  // NaN, infinity
    SCOPED_TRACE(value);
    const BrokenToken model(options_.model, broken, value);
    EngineOptions options = options_;
    options.model = model.path();
    std::swap(options, options_);
    engine_.reset();
    const std::filesystem::path healthy = options.model;
    Answer neighbour;
    Request running = good(3);
    running.logprobs = 0;
    submit(std::move(running), neighbour);
    const auto bad = [&](uint32_t max_tokens) {
      Request asked = request("", max_tokens);
      asked.prompt = good_prompt;
      asked.prompt[80] = broken;
      asked.prompt.resize(140, good_prompt.back());
      return asked;
    };
    for (const uint32_t max_tokens : {20U, 0U, 20U}) {
      Answer answer;
      submit(bad(max_tokens), answer);
      EXPECT_EQ(answer.wait(), FinishReason::kError);
      EXPECT_NE(answer.error().find("NaN"), std::string::npos);
      EXPECT_EQ(answer.generated(), 0U);
    }
    // Also the first page, which was good and shared with the neighbour, is not found any more.
    Answer last;
    submit(bad(20), last);
    EXPECT_EQ(last.wait(), FinishReason::kError);
    EXPECT_EQ(last.cached(), 0U);
    EXPECT_EQ(neighbour.wait(), FinishReason::kLength);
    EXPECT_EQ(heard(neighbour), alone);
    EXPECT_EQ(hear(good(3)), alone);
    EXPECT_EQ(engine().statistics().finished_error, 4U);
    options_.model = healthy;
  }
}

TEST_F(ServingTest, cancelling_those_that_wait_never_touches_one_that_runs) {
  options_.sequence_count = 1;
  const Heard alone = hear(request("running", 250));
  Answer running;
  Request asked = request("running", 250);
  asked.logprobs = 0;
  submit(std::move(asked), running);
  std::vector<std::unique_ptr<Answer>> answers;
  for (uint64_t index = 0; index < 100; ++index) {
    answers.push_back(std::make_unique<Answer>());
    submit(request("running", 250, index), *answers.back());
    engine().cancel(last_id_);
  }
  EXPECT_EQ(running.wait(), FinishReason::kLength);
  EXPECT_EQ(heard(running), alone);
  for (auto& answer : answers) answer->wait();
  EXPECT_GT(engine().statistics().finished_cancelled, 0U);
}

TEST(Throughput, tells_when_there_is_space_and_how_long_a_chunk_may_be) {
  Throughput throughput;
  EXPECT_EQ(throughput.seconds_until_space(100, 100'000), 1);
  EXPECT_EQ(throughput.prompts_most().alone, 32U);
  throughput.add_pass({100}, 1);
  throughput.add_request(50);
  EXPECT_DOUBLE_EQ(throughput.tokens_per_second(), 100);
  EXPECT_EQ(throughput.prompts_most().alone, 400U);
  // 10 requests that generate 50 each, and prompts of 1,500: 20 s, half of it in 10.
  EXPECT_EQ(throughput.seconds_until_space(10, 1'500), 10);
  EXPECT_EQ(throughput.seconds_until_space(1000, 1'000'000), 60);
  EXPECT_EQ(throughput.seconds_until_space(0, 0), 1);
  // Few tokens say nothing of prompts; slow ones do.
  throughput.add_pass({1}, 1);
  EXPECT_EQ(throughput.prompts_most().alone, 400U);
  throughput.add_pass({64}, 32);
  EXPECT_EQ(throughput.prompts_most().alone, 32U);
}

// Whatever happens to a request, it ends once.
TEST_F(ServingTest, every_request_ends_exactly_once) {
  const uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  options_.kv_pages = 12;
  options_.waiting_requests = 1000;
  engine();
  std::atomic<size_t> ends = 0;
  std::atomic<size_t> again = 0;
  std::atomic<size_t> submitted = 0;
  const auto client = [&](uint64_t number) {
    std::mt19937_64 random(seed + number);
    const auto pick = [&](size_t below) { return random() % below; };
    std::vector<RequestId> ids;
    for (int round = 0; round < 150; ++round) {
      Request asked;
      asked.prompt.assign(1 + pick(150), static_cast<TokenId>(40 + pick(3)));
      asked.max_tokens = static_cast<uint32_t>(pick(20));
      asked.tenant = std::string(1, static_cast<char>('a' + pick(3)));
      asked.cache_owner = std::string(1, static_cast<char>('a' + pick(3)));
      asked.priority = static_cast<int32_t>(pick(3));
      asked.deadline_seconds = pick(5) == 0 ? 1e-4 * static_cast<double>(pick(100)) : 0;
      asked.on_output = [&, ended = false](Output&& output) mutable {
        again += ended ? 1 : 0;
        ended = output.finish.has_value();
        ends += ended ? 1 : 0;
      };
      if (const auto id = engine_->submit(std::move(asked))) {
        ++submitted;
        ids.push_back(*id);
      }
      if (!ids.empty() && pick(3) == 0) engine_->cancel(ids[pick(ids.size())]);
    }
  };
  {
    std::vector<std::jthread> clients;
    for (uint64_t number = 0; number < 3; ++number) clients.emplace_back(client, number);
  }
  engine_->drain(60);
  EXPECT_EQ(ends, submitted);
  EXPECT_EQ(again, 0U);
  const EngineStatistics statistics = engine_->statistics();
  EXPECT_EQ(statistics.kv_pages_free + statistics.kv_pages_cached, statistics.kv_pages);
  EXPECT_EQ(statistics.request_seconds.count, submitted);
  EXPECT_EQ(statistics.waiting_prompt_tokens, 0U);
}

}  // namespace
}  // namespace lockstep
