#include "engine/serving/host_member.h"

#include <chrono>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/mutex.h"

namespace lockstep {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(100);
constexpr auto kFormAgainAfter = std::chrono::milliseconds(500);

class Leader final : public HostMember {
 public:
  Leader(const HostGroup& group, Executor& executor, EngineLoop& loop)
      : group_(group), executor_(executor), loop_(loop), thread_([this] { watch(); }) {}
  ~Leader() override {
    stop_ = true;
    thread_.join();
  }

  bool is_together() const override { return together_; }

 private:
  // A pass that runs fails by itself; this is for those that would come.
  void watch() {
    while (!stop_ && !loop_.failure()) {
      if (const auto lost = group_.failure()) {
        together_ = false;
        loop_.run_if_idle([&] { executor_.abandon(*lost); });
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }

  const HostGroup& group_;
  Executor& executor_;
  EngineLoop& loop_;
  std::atomic<bool> together_ = true;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

class Follower final : public HostMember {
 public:
  Follower(std::unique_ptr<HostGroup>& group, Executor& executor, HostExchange& exchange,
           const BatchLimits& limits, FormAgain form_again, EngineLoop& loop)
      : group_(group),
        executor_(executor),
        exchange_(exchange),
        batch_(limits),
        form_again_(std::move(form_again)),
        loop_(loop),
        current_(group.get()),
        thread_([this] { work(); }) {}
  ~Follower() override {
    stop_ = true;
    {
      const MutexLock lock(mutex_);
      end_current();
    }
    thread_.join();
  }

  bool is_together() const override { return together_; }

 private:
  void work() {
    while (true) {
      const Result<void> ended = follow();
      if (stop_) return;
      spdlog::warn("the group of hosts has come apart: {}; the weights stay, for the next one",
                   ended.error().message);
      together_ = false;
      if (auto joined = join_another(); !joined) {
        if (!stop_) loop_.run_if_idle([&] { executor_.abandon(joined.error()); });
        return;
      }
      together_ = true;
    }
  }

  // Until the group fails.
  Result<void> follow() {
    while (true) {
      auto command = group_->next_command();
      if (!command) return std::unexpected(command.error());
      if (auto obeyed = obey(*command); !obeyed) {
        group_->fail(obeyed.error());
        return obeyed;
      }
    }
  }

  Result<void> obey(std::span<const std::byte> bytes) {
    auto command = read_command(bytes);
    if (!command) return std::unexpected(command.error());
    if (command->kind == CommandKind::kHiddenRows) return send_hidden_rows(*command);
    if (command->kind == CommandKind::kKeptRows) return send_kept_rows(*command);
    if (auto read = batch_.read(command->batch); !read) return read;
    return executor_.run(batch_.batch());
  }

  Result<void> send_hidden_rows(const Command& command) {
    const size_t tokens = batch_.batch().tokens.size();
    const size_t count = command.token_count;
    if (executor_.hidden_width() == 0) {
      return invalid_input("the leader asks for hidden rows of a model that gives none");
    }
    if (count == 0 || count > executor_.hidden_rows_at_once() || command.first_token > tokens ||
        count > tokens - command.first_token) {
      return invalid_input("the leader asks for {} hidden rows from {} on of a pass of {} tokens",
                           count, command.first_token, tokens);
    }
    rows_.resize(count * executor_.hidden_width());
    return executor_.read_hidden_rows(command.first_token, rows_, command.form);
  }

  Result<void> send_kept_rows(const Command& command) {
    const size_t tokens = batch_.batch().tokens.size();
    if (executor_.kept_width() == 0) {
      return invalid_input("the leader asks for rows that no layer of this host's model keeps");
    }
    if (command.first_token >= tokens) {
      return invalid_input("the leader asks for the kept rows of token {} of a pass of {}",
                           command.first_token, tokens);
    }
    rows_.resize(executor_.kept_width());
    return executor_.read_kept_rows(command.first_token, rows_);
  }

  Result<void> join_another() {
    set_current(nullptr);
    group_.reset();
    while (true) {
      auto formed = form_again_(stop_, [this](HostGroup* group) { set_current(group); });
      if (formed) {
        group_ = std::move(*formed);
        break;
      }
      if (stop_ || formed.error().kind != ErrorKind::kUnavailable) {
        return std::unexpected(formed.error());
      }
      spdlog::warn("no group of hosts yet: {}", formed.error().message);
      std::this_thread::sleep_for(kFormAgainAfter);
    }
    exchange_.join(*group_);
    batch_.clear();
    executor_.start_over();
    if (stop_) return unavailable("this host is stopping");
    return {};
  }

  // The group that the destructor makes fail; it may have looked before there was one.
  void set_current(HostGroup* group) {
    const MutexLock lock(mutex_);
    current_ = group;
    if (stop_) end_current();
  }
  void end_current() LOCKSTEP_REQUIRES(mutex_) {
    if (current_ == nullptr) return;
    current_->fail({ErrorKind::kUnavailable, current_->name(current_->index()) + " is stopping"});
  }

  std::unique_ptr<HostGroup>& group_;
  Executor& executor_;
  HostExchange& exchange_;
  ReceivedBatch batch_;
  FormAgain form_again_;
  EngineLoop& loop_;
  std::vector<float> rows_;
  std::atomic<bool> together_ = true;
  std::atomic<bool> stop_ = false;
  Mutex mutex_;
  HostGroup* current_ LOCKSTEP_GUARDED_BY(mutex_);  // that the destructor ends; null: none
  std::thread thread_;                              // last: it uses all of the above
};

}  // namespace

void HostMember::wait_until_apart(double seconds) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (is_together() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kLookEvery);
  }
}

std::unique_ptr<HostMember> watch_group(const HostGroup& group, Executor& executor,
                                        EngineLoop& loop) {
  return std::make_unique<Leader>(group, executor, loop);
}

std::unique_ptr<HostMember> follow_leader(std::unique_ptr<HostGroup>& group, Executor& executor,
                                          HostExchange& exchange, const BatchLimits& limits,
                                          FormAgain form_again, EngineLoop& loop) {
  return std::make_unique<Follower>(group, executor, exchange, limits, std::move(form_again), loop);
}

}  // namespace lockstep
