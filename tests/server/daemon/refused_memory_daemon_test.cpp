// The whole daemon is refused memory on each of its threads in turn, anywhere in a request's life:
// that request is answered with an error, or its connection ends. The daemon goes on, gives the
// same answers as before, and nothing of the request is left behind.
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/engine.h"
#include "engine/placement/machine.h"
#include "server/daemon/daemon.h"
#include "server/daemon/last_resort.h"
#include "server/daemon/signals.h"
#include "tests/paths.h"
#include "tests/refusals.h"
#include "tests/server/http/raw_client.h"
#include "tests/temporary_folder.h"

// Asked by the sanitizer of leaks. A constructor of the JSON library that is refused memory loses
// what it had made of the value until then, some tens of bytes.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:nlohmann::*::basic_json\n";
}

namespace lockstep {
namespace {

using refusals::counted_of_threads;
using refusals::kNever;
using refusals::refuse_of_threads;
using refusals::refused;

// Longer than a string's own bytes: who copies it asks for memory.
constexpr std::string_view kKey = "a-key-of-a-tenant-with-a-long-name";
constexpr const char* kEngineThread = "engine";

void name_engine_thread() {
  thread_local bool is_named = false;
  if (!std::exchange(is_named, true)) pthread_setname_np(pthread_self(), kEngineThread);
}

// Waits, and fails the test after a long while instead of hanging it.
bool comes(const std::function<bool()>& condition) {
  constexpr std::chrono::seconds kLongWait{60};
  const auto end = std::chrono::steady_clock::now() + kLongWait;
  while (!condition()) {
    if (testing::Test::HasFailure() || std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A daemon with the bundled model and one key, whose owner may have one request at once, at a Unix
// socket.
class RunningDaemon {
 public:
  RunningDaemon() {
    block_signals(Hangup::kReloads);
    std::ofstream(folder_ / "keys.json")
        << R"({"keys":[{"name":"a-tenant-with-a-long-name-too","key":")" << kKey
        << R"(","concurrent":1}]})";
    OptionSources sources;
    sources.command_line = {{"model", source_dir() + "/config/demo.gguf"},
                            {"host", "unix:" + socket_},
                            {"api-keys", folder_ / "keys.json"},
                            {"isa", kernel_row().empty() ? "auto" : kernel_row()},
                            {"workers", "1"},
                            {"sequences", "2"},
                            {"context", "512"},
                            {"http-threads", "4"},
                            {"max-connections", "8"},
                            {"max-bodies-bytes", "1048576"}};
    auto values = resolve_options(sources);
    EXPECT_TRUE(values.has_value()) << values.error().message;
    const Options options = to_options(*values);
    Machine machine = Machine::read(/*with_gpus=*/false);
    machine.before_pass = []() -> Result<void> {
      name_engine_thread();
      return {};
    };
    log_.emplace(options);
    auto engine = Engine::open(options.engine, machine);
    EXPECT_TRUE(engine.has_value()) << engine.error().message;
    daemon_.emplace(std::move(*engine), *values, sources, *log_, waiting_);
    thread_ = std::thread([this] {
      const auto served = daemon_->run();
      EXPECT_TRUE(served.has_value()) << served.error().message;
    });
    EXPECT_TRUE(comes([this] { return daemon_->engine().statistics().load.ready; }));
    EXPECT_TRUE(comes([this] {
      RawClient client(socket_);
      client.send("GET /health/ready HTTP/1.1\r\nHost: test\r\n\r\n");
      const auto answer = client.receive();
      return answer && answer->status == 200;
    }));
  }
  ~RunningDaemon() {
    refuse_of_threads(nullptr, kNever);
    ::kill(::getpid(), SIGTERM);
    thread_.join();
    daemon_.reset();
    LastResort().never();  // it was to end a process that does not; this one goes on
    log_.reset();
    spdlog::drop_all();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(""));
  }

  Engine& engine() { return daemon_->engine(); }
  const std::string& socket() const { return socket_; }

 private:
  const test::Folder folder_;
  const std::string socket_ = folder_ / "socket";
  std::optional<DaemonLog> log_;
  const WaitingStatus waiting_;
  std::optional<Daemon> daemon_;
  std::thread thread_;
};

// A request as its client sends it. `number` is another for each: of what a daemon remembers.
struct Sort {
  std::string_view name;
  std::string_view path;
  std::function<std::string(int64_t number)> body;  // none: GET
  bool leaves = false;  // the client, with the first bytes of the answer
};

const std::string kMessages =
    R"("messages":[{"role":"user","content":"Tell me of a dog and a cat"}])";

std::function<std::string(int64_t)> always(std::string body) {
  return [body = std::move(body)](int64_t) { return body; };
}

// A schema that no request before has had.
std::string schema(int64_t number) {
  return R"({"type":"json_schema","json_schema":{"name":"n","schema":{"title":"title )" +
         std::to_string(number) +
         R"(","type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}},"b":)"
         R"({"enum":["one text","another"]}},"required":["a","b"],"additionalProperties":false}}})";
}

const std::vector<Sort>& sorts() {
  static const std::vector<Sort> sorts = {
      {"completion", "/v1/completions",
       always(R"({"prompt":"Once upon a time there was","max_tokens":6,"temperature":0,)"
              R"("logprobs":2})" +
              std::string(100'000, ' '))},
      {"stop words", "/v1/completions",
       always(R"({"prompt":"One day a little","max_tokens":12,"temperature":0.8,"seed":3,)"
              R"("stop":["a stop string that never comes","the"],"n":2})")},
      {"chat stream", "/v1/chat/completions",
       always("{" + kMessages + R"(,"max_tokens":8,"temperature":0,"stream":true,)" +
              R"("stop":["a stop string that never comes"]})")},
      {"grammar", "/v1/chat/completions",
       [](int64_t number) {
         return "{" + kMessages + R"(,"max_tokens":12,"temperature":0,"response_format":)" +
                schema(number) + "}";
       }},
      {"tools", "/v1/chat/completions",
       always("{" + kMessages +
              R"(,"max_tokens":8,"temperature":0,"tool_choice":"required","tools":[{"type":)"
              R"("function","function":{"name":"weather_of_a_place","parameters":{"type":"object",)"
              R"("properties":{"place":{"type":"string"}}}}}]})")},
      {"response", "/v1/responses",
       always(R"({"input":"Tell me of a dog","max_output_tokens":4,"temperature":0})")},
      {"message", "/v1/messages",
       always("{" + kMessages + R"(,"max_tokens":4,"temperature":0,"stream":true})")},
      {"tokens", "/tokenize", always(R"({"prompt":"Once upon a time there was a little dog"})")},
      {"models", "/v1/models", nullptr},
      {"metrics", "/metrics", nullptr},
      {"client that leaves", "/v1/completions",
       always(R"({"prompt":"Once upon a time","max_tokens":300,"temperature":0,"stream":true,)"
              R"("ignore_eos":true})"),
       true},
  };
  return sorts;
}

// The parts of an answer that are the same each time, as text.
std::string essence(const Json& answer) {
  Json kept = answer;
  for (const char* key : {"id", "created", "created_at", "usage", "completed_at"}) kept.erase(key);
  if (kept.contains("output")) {
    for (Json& item : kept["output"]) item.erase("id");
  }
  if (kept.contains("choices")) {
    for (Json& choice : kept["choices"]) {
      if (!choice.contains("message") || !choice["message"].contains("tool_calls")) continue;
      for (Json& call : choice["message"]["tool_calls"]) call.erase("id");
    }
  }
  return kept.dump();
}

// How events are cut does not matter: the texts in their order.
void add_texts(const Json& value, std::string& texts) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      const bool is_text = key == "content" || key == "text" || key == "finish_reason" ||
                           key == "stop_reason" || key == "error";
      if (is_text && member.is_string()) texts += member.get<std::string>();
      if (key == "error") texts += "error";
      add_texts(member, texts);
    }
  } else if (value.is_array()) {
    for (const Json& element : value) add_texts(element, texts);
  }
}

struct Answer {
  int status = 0;
  std::string text = {};
  bool has_failed = false;  // a stream that tells of an error, or was cut
};

Answer read_answer(const RawResponse& response) {
  Answer answer{.status = response.status, .has_failed = !response.is_whole};
  const auto type = response.headers.find("content-type");
  const std::string media = type == response.headers.end() ? std::string() : type->second;
  if (media.starts_with("application/json")) {
    const auto json = parse_json(response.body, {.depth = 100});
    if (json) answer.text = essence(*json);
  } else if (media.starts_with("text/event-stream")) {
    for (size_t at = 0; (at = response.body.find("data: ", at)) != std::string::npos;) {
      at += 6;
      const size_t end = response.body.find('\n', at);
      const auto json = parse_json(response.body.substr(at, end - at), {.depth = 100});
      if (!json) continue;  // [DONE]
      answer.has_failed |= json->contains("error");
      add_texts(*json, answer.text);
    }
  }
  return answer;
}

class RefusedMemory : public testing::Test {
 protected:
  // No answer: the connection has ended before it.
  std::optional<Answer> ask(const Sort& sort, int64_t number) {
    RawClient client(daemon_.socket());
    std::string text = (sort.body ? "POST " : "GET ") + std::string(sort.path) +
                       " HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer " + std::string(kKey) +
                       "\r\n";
    if (sort.body) {
      const std::string body = sort.body(number);
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body;
    } else {
      text += "\r\n";
    }
    client.send(text);
    if (sort.leaves) {
      client.receive_bytes(100);  // of the head: no answer is shorter
      client.reset();
      return std::nullopt;
    }
    const auto response = client.receive();
    if (!response) return std::nullopt;
    return read_answer(*response);
  }

  // Waits until the daemon holds nothing of any request: the engine's own counters, and the one
  // place of the key, without which a request gets 429.
  void expect_rest() {
    EXPECT_TRUE(comes([this] {
      const EngineStatistics now = daemon_.engine().statistics();
      return now.requests_running + now.requests_waiting == 0 && now.waiting_prompt_tokens == 0 &&
             now.kv_pages_free + now.kv_pages_cached == now.kv_pages;
    })) << "the engine holds something of a request that has gone";
    EXPECT_TRUE(comes([this] {
      const auto answer = ask(tokens_, 0);
      return answer && answer->status == 200;
    })) << "a place of the key, a connection or bytes of bodies are lost";
  }

  // As it was answered before.
  void expect_same(const Sort& sort, int64_t number, const std::string& expected) {
    const auto answer = ask(sort, number);
    ASSERT_EQ(answer.has_value(), !sort.leaves);
    if (!answer) return;
    EXPECT_EQ(answer->status, 200) << answer->text;
    EXPECT_FALSE(answer->has_failed) << answer->text;
    EXPECT_EQ(answer->text, expected);
  }

  // One request while `count` allocations of these threads are refused from `first` on.
  void refuse(const Sort& sort, const char* thread, int64_t first, int64_t count) {
    const int64_t number = next_number_++;
    refuse_of_threads(thread, first, count);
    const auto answer = ask(sort, number);
    if (answer && answer->status == 200 && !answer->has_failed) {
      EXPECT_EQ(answer->text, expected_) << "an answer that looks whole and is not";
    } else if (answer && answer->status != 200) {
      EXPECT_TRUE(answer->status == 500 || answer->status == 503)
          << answer->status << " blames the client: " << answer->text;
    }
    refuse_of_threads(nullptr, kNever);
    expect_rest();
    expect_same(sort, number, expected_);
    if (sort.leaves) expect_rest();
    ASSERT_FALSE(daemon_.engine().failure().has_value()) << daemon_.engine().failure()->message;
  }

  // `steps` numbers, spread evenly over all allocations that the request causes on these threads.
  void refuse_each(const Sort& sort, const char* thread, int64_t steps, int64_t count) {
    refuse_of_threads(thread, kNever);
    ask(sort, next_number_++);
    const int64_t all = counted_of_threads();
    refuse_of_threads(nullptr, kNever);
    expect_rest();
    const int64_t stride = std::max<int64_t>(1, all / steps);
    for (int64_t first = 0, step = 0; first < all; first += stride, ++step) {
      const int64_t number = first + step % stride;
      SCOPED_TRACE(fmt::format("{}: allocation {} of {} on {}", sort.name, number, all, thread));
      ASSERT_NO_FATAL_FAILURE(refuse(sort, thread, number, count));
      if (HasFailure()) return;
    }
  }

  void refuse_some(const Sort& sort, const char* thread, int64_t steps, int64_t count) {
    const auto first = ask(sort, next_number_++);
    expected_ = first ? first->text : "";
    expect_rest();
    refuse_each(sort, thread, steps, count);
  }

  RunningDaemon daemon_;
  const Sort tokens_ = {"tokens", "/tokenize", always(R"({"prompt":"a dog"})")};
  std::string expected_;  // of the sort whose turn it is
  int64_t next_number_ = 0;
};

// By thread and sort.
class RefusedMemoryOfDaemon : public RefusedMemory,
                              public testing::WithParamInterface<std::tuple<const char*, size_t>> {
 protected:
  void refuse_some(int64_t steps, int64_t count) {
    const auto& [thread, sort] = GetParam();
    RefusedMemory::refuse_some(sorts()[sort], thread, steps, count);
  }
};

INSTANTIATE_TEST_SUITE_P(Each, RefusedMemoryOfDaemon,
                         testing::Combine(testing::Values("gate", "http", "prepare", kEngineThread),
                                          testing::Range(size_t{0}, sorts().size())),
                         [](const auto& tested) {
                           std::string name(std::get<0>(tested.param));
                           name += "_of_a_" + std::string(sorts()[std::get<1>(tested.param)].name);
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

TEST_P(RefusedMemoryOfDaemon, one_refusal_costs_a_request_and_not_the_daemon) {
  refuse_some(40, 1);
}

TEST_P(RefusedMemoryOfDaemon, many_in_a_row_do_not_either) {
  refuse_some(10, 300);
}

// Twice, so that it has gone on after the first time.
TEST_F(RefusedMemory, the_status_is_told_later) {
  const int64_t before = refused;
  refuse_of_threads("status", 0, 1'000'000'000);
  EXPECT_TRUE(comes([&] { return refused >= before + 2; }));
  refuse_of_threads(nullptr, kNever);
  expect_rest();
}

}  // namespace
}  // namespace lockstep
