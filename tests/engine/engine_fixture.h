// An engine of a tiny model, and answers to wait for.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/placement/machine.h"
#include "tests/paths.h"

namespace lockstep {

// Collects a request's news on the engine's thread; the test waits for its end.
class Answer {
 public:
  std::function<void(Output&&)> callback() {
    return [this](Output&& output) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(finish_.has_value()) << "news after the end";
      text_ += output.text;
      for (auto& token : output.prompt) prompt_.push_back(std::move(token));
      for (auto& token : output.tokens) tokens_.push_back(std::move(token));
      generated_ = output.generated_tokens;
      cached_ = output.cached_tokens;
      error_ = output.error;
      embedding_ = output.embedding;
      finish_ = output.finish;
      changed_.notify_all();
    };
  }

  FinishReason wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_.has_value(); });
    return *finish_;
  }
  void wait_for_text() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !tokens_.empty() || finish_.has_value(); });
  }

  // After wait().
  const std::string& text() const { return text_; }
  const std::vector<OutputToken>& tokens() const { return tokens_; }
  const std::vector<OutputToken>& prompt() const { return prompt_; }
  uint32_t generated() const { return generated_; }
  uint32_t cached() const { return cached_; }
  const std::string& error() const { return error_; }
  const std::vector<float>& embedding() const { return embedding_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::vector<OutputToken> tokens_;
  std::vector<OutputToken> prompt_;
  uint32_t generated_ = 0;
  uint32_t cached_ = 0;
  std::string error_;
  std::vector<float> embedding_;
  std::optional<FinishReason> finish_;
};

// Holds the engine's thread in a running request's news until it is let go.
class NewsGate {
 public:
  std::function<void(Output&&)> hold(std::function<void(Output&&)> pass) {
    return [mutex = mutex_, pass = std::move(pass)](Output&& output) {
      const std::lock_guard wait(*mutex);
      pass(std::move(output));
    };
  }
  void open() { closed_.unlock(); }

 private:
  // Shared: the engine's thread may let it go after the test has its answer.
  const std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  std::unique_lock<std::mutex> closed_{*mutex_};
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    options_.model = source_dir() + "/tests/fixtures/logits/llama-gqa-f16.gguf";
    options_.instruction_set = kernel_row();
    options_.worker_count = 2;
    options_.sequence_count = 4;
    options_.context_tokens = 192;
    options_.batch_tokens = 48;
  }

  Result<std::unique_ptr<Engine>> open() const {
    return machine_ ? Engine::open(options_, *machine_) : Engine::open(options_);
  }

  Engine& engine() {
    if (!engine_) {
      auto opened = open();
      if (!opened) throw std::runtime_error(opened.error().message);
      engine_ = std::move(*opened);
      if (auto loaded = engine_->load(); !loaded) throw std::runtime_error(loaded.error().message);
    }
    return *engine_;
  }

  Request request(const std::string& prompt, uint32_t max_tokens, uint64_t seed = 7) {
    Request request;
    request.prompt = engine().tokenizer().encode(prompt, {});
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.seed = seed;
    return request;
  }

  void submit(Request request, Answer& answer) {
    request.on_output = answer.callback();
    const auto id = engine().submit(std::move(request));
    ASSERT_TRUE(id.has_value()) << id.error().message;
    last_id_ = *id;
  }

  // A request that generates so many tokens and holds the engine's thread until the gate is opened.
  void hold(NewsGate& gate, Answer& answer, uint32_t tokens = 2) {
    Request holding = request("hold", tokens);
    holding.on_output = gate.hold(answer.callback());
    ASSERT_TRUE(engine().submit(std::move(holding)).has_value());
  }

  std::string answer_to(Request request) {
    Answer answer;
    submit(std::move(request), answer);
    answer.wait();
    return answer.text();
  }

  EngineOptions options_;
  std::optional<Machine> machine_;  // none: the one that runs the test
  std::unique_ptr<Engine> engine_;
  RequestId last_id_ = 0;
};

}  // namespace lockstep
