// A group of hosts of which one is real: what the others say is the test's, so that one thread sees
// what an agreement comes to.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "engine/hosts/host_group.h"

namespace lockstep {

class ScriptedGroup final : public HostGroup {
 public:
  // Another host's document in a gathering, of which the first has number 0; `own`: this one's.
  using Says = std::function<Json(size_t gathering, size_t host, const Json& own)>;

  ScriptedGroup(size_t count, size_t index, Says says)
      : count_(count), index_(index), says_(std::move(says)) {
    for (size_t host = 0; host < count; ++host) {
      names_.push_back(fmt::format("host {} (h{}:7070)", host, host));
    }
  }

  size_t count() const override { return count_; }
  size_t index() const override { return index_; }
  const std::string& name(size_t host) const override { return names_[host]; }
  Result<std::vector<Json>> gather(const Json& own) override {
    gathered.push_back(own);
    std::vector<Json> all;
    for (size_t host = 0; host < count_; ++host) {
      all.push_back(host == index_ ? own : says_(gathered.size() - 1, host, own));
    }
    return all;
  }
  Result<void> open_links(size_t /*bytes_most*/) override { return {}; }
  HostLink& link(size_t host) override {
    CHECK(false, "no link with host {} is part of the script", host);
    __builtin_unreachable();
  }
  Result<void> bound_commands(size_t /*bytes_most*/) override { return {}; }
  Result<void> send_command(std::span<const std::byte> /*command*/) override { return {}; }
  Result<std::span<const std::byte>> next_command() override { return unavailable("none comes"); }
  void fail(const Error& reason) noexcept override { failure_ = reason; }
  std::optional<Error> failure() const override { return failure_; }
  void on_failure(std::function<void(const Error&)> /*call*/) override {}

  std::vector<Json> gathered;  // what this host has said

 private:
  size_t count_;
  size_t index_;
  Says says_;
  std::vector<std::string> names_;
  std::optional<Error> failure_;
};

}  // namespace lockstep
