#include "tests/engine/hosts/test_hosts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/base/log.h"

namespace lockstep::test {

std::string own_address() {
  // Process ids have 22 bits; those that differ in the highest alone do not run side by side here.
  static std::atomic<unsigned> count = 0;
  const auto process = static_cast<unsigned>(::getpid());
  return fmt::format("127.{}.{}.{}:{}", 1 + process % 250, 1 + process / 250 % 250,
                     1 + process / 62500 % 250, 7070 + count++);
}

HostOptions host_options(size_t count, size_t index, const std::string& leader,
                         std::optional<SecretKey> secret) {
  HostOptions options;
  options.count = count;
  options.index = index;
  options.addresses = {leader};
  options.secret = secret;
  options.patience = std::chrono::seconds(30);
  options.version = "test";
  options.group = "test";
  options.transport = "tcp";  // others have their own tests
  return options;
}

FormingHost::FormingHost(HostOptions options) {
  // The log's library is not instrumented: that it is set up once shows in no other way.
  spdlog::default_logger_raw();
  thread_ = std::thread([this, options] { formed_ = HostGroup::form(options, stop_); });
}

FormingHost::~FormingHost() {
  stop();
  if (thread_.joinable()) thread_.join();
}

Formed FormingHost::wait() {
  thread_.join();
  return std::move(formed_);
}

std::vector<std::unique_ptr<HostGroup>> form_group(size_t count, std::optional<SecretKey> secret,
                                                   std::chrono::milliseconds patience) {
  const std::string leader = own_address();
  std::vector<std::unique_ptr<FormingHost>> forming;
  for (size_t index = 0; index < count; ++index) {
    HostOptions options = host_options(count, index, leader, secret);
    options.patience = patience;
    forming.push_back(std::make_unique<FormingHost>(options));
  }
  std::vector<std::unique_ptr<HostGroup>> hosts;
  for (const auto& host : forming) {
    Formed formed = host->wait();
    EXPECT_TRUE(formed) << formed.error().message;
    if (formed) hosts.push_back(std::move(*formed));
  }
  EXPECT_EQ(hosts.size(), count);
  return hosts;
}

void on_all(std::vector<std::unique_ptr<HostGroup>>& hosts,
            const std::function<void(HostGroup&)>& work) {
  std::vector<std::thread> threads;
  for (const auto& host : hosts) threads.emplace_back([&] { work(*host); });
  for (std::thread& thread : threads) thread.join();
}

std::string failure_of(const HostGroup& host) {
  while (!host.failure()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return host.failure()->message;
}

SecretKey some_secret() {
  SecretKey secret;
  secret.fill(std::byte{7});
  return secret;
}

std::unique_ptr<ControlStream> connect_to(const std::string& address) {
  const HostStreamOptions options = {.secret = {}, .patience = std::chrono::seconds(30)};
  while (true) {
    auto connected = connect_host(address, options);
    if (connected) return std::make_unique<ControlStream>(std::move(*connected));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Hello hello_of(uint32_t count, uint32_t index) {
  Hello hello;
  hello.count = count;
  hello.index = index;
  hello.run = random_nonce();
  hello.version = "test";
  hello.group = "test";
  return hello;
}

void say(ControlStream& stream, const Hello& hello) {
  std::vector<std::byte> frame;
  append_frame(hello, frame);
  ASSERT_TRUE(stream.send(frame));
}

Frame next_frame(ControlStream& stream) {
  while (true) {
    const auto frame = stream.receive_within(std::chrono::seconds(1));
    if (!frame) {
      ADD_FAILURE() << frame.error().message;
      return {};
    }
    if (!*frame) continue;
    const FrameKind kind = (*frame)->kind;
    if (kind != FrameKind::kPing && kind != FrameKind::kMissing) return **frame;
  }
}

}  // namespace lockstep::test
