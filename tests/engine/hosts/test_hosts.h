// Groups of hosts in one process: a thread for each, over loopback.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/hosts/control_stream.h"
#include "engine/hosts/host_group.h"

namespace lockstep::test {

using Formed = Result<std::unique_ptr<HostGroup>>;

// An address of the loopback network that no other test has: no port is looked for.
std::string own_address();

// Options of host `index`; only the leader's address is given.
HostOptions host_options(size_t count, size_t index, const std::string& leader,
                         std::optional<SecretKey> secret = {});

// A host that forms its group in a thread of its own.
class FormingHost {
 public:
  explicit FormingHost(HostOptions options);
  ~FormingHost();
  FormingHost(const FormingHost&) = delete;
  FormingHost& operator=(const FormingHost&) = delete;

  void stop() { stop_ = true; }
  Formed wait();  // once

 private:
  std::atomic<bool> stop_ = false;
  Formed formed_;
  std::thread thread_;
};

// A complete group, by host.
std::vector<std::unique_ptr<HostGroup>> form_group(
    size_t count, std::optional<SecretKey> secret = {},
    std::chrono::milliseconds patience = std::chrono::seconds(30));

// Calls work(host) for each host at the same time.
void on_all(std::vector<std::unique_ptr<HostGroup>>& hosts,
            const std::function<void(HostGroup&)>& work);

// Waits until the group has failed, and tells why.
std::string failure_of(const HostGroup& host);

SecretKey some_secret();

// A connection that says what a test wants, to a host that listens at `address`.
std::unique_ptr<ControlStream> connect_to(const std::string& address);
Hello hello_of(uint32_t count, uint32_t index);
void say(ControlStream& stream, const Hello& hello);
// The next frame that is no ping and tells of no missing hosts; its payload is valid until the next
// call.
Frame next_frame(ControlStream& stream);

}  // namespace lockstep::test
