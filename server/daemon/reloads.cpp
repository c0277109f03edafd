#include "server/daemon/reloads.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {
namespace {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The names of rows that cannot change while the daemon runs and whose values differ.
std::vector<std::string_view> fixed_changes(const OptionValues& now, const OptionValues& fresh) {
  std::vector<std::string_view> names;
  for (const OptionRow& row : option_table()) {
    if (row.reloadable) continue;
    if (now.find(row.name)->second.value != fresh.find(row.name)->second.value) {
      names.push_back(row.name);
    }
  }
  return names;
}

}  // namespace

Reloads::Reloads(OptionSources sources, OptionValues values)
    : sources_(std::move(sources)), values_(std::move(values)) {
  outcome_.unix_seconds = unix_seconds();
}

void Reloads::stop() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Reloads::add(std::string name, Prepare prepare) {
  entries_.push_back({std::move(name), std::move(prepare)});
}

void Reloads::start(std::function<void()> on_begin, std::function<void()> on_end) {
  on_begin_ = std::move(on_begin);
  on_end_ = std::move(on_end);
  thread_ = std::thread([this] { work(); });
  pthread_setname_np(thread_.native_handle(), "reload");
}

void Reloads::request() {
  {
    const MutexLock lock(mutex_);
    requested_ = true;
  }
  changed_.notify_all();
}

Reloads::Outcome Reloads::outcome() const {
  const MutexLock lock(mutex_);
  return outcome_;
}

void Reloads::work() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (!requested_ && !ending_) changed_.wait(mutex_);
      if (ending_) return;
      requested_ = false;
    }
    log_surely([&] {
      if (on_begin_) on_begin_();
    });
    reload();
    log_surely([&] {
      if (on_end_) on_end_();
    });
  }
}

void Reloads::reload() {
  bool success = false;
  Result<Prepared> prepared = std::unexpected(Error{ErrorKind::kMachineRefused, "no memory"});
  try {
    prepared = prepare();
  } catch (const std::bad_alloc&) {
    success = false;  // for the reason that stands there
  }
  if (prepared) {
    success = put_into_effect(std::move(*prepared));
  } else {
    log_surely([&] {
      spdlog::error("the configuration was not read again, all stays as it was: {}",
                    prepared.error().message);
    });
  }
  const MutexLock lock(mutex_);
  outcome_ = {.success = success, .unix_seconds = unix_seconds()};
}

Result<Reloads::Prepared> Reloads::prepare() const {
  auto fresh = resolve_options(sources_);
  if (!fresh) return std::unexpected(fresh.error());
  Prepared prepared{.values = values_, .fixed = fixed_changes(values_, *fresh), .commits = {}};
  // An option that takes a restart keeps the value that is in effect, and is named at each reload.
  // The others are moved: a copying assignment may be noexcept though the copy takes memory.
  for (const OptionRow& row : option_table()) {
    if (!row.reloadable) continue;
    prepared.values.find(row.name)->second = std::move(fresh->find(row.name)->second);
  }
  const Options options = to_options(prepared.values);
  for (const Entry& entry : entries_) {
    auto commit = entry.prepare(options);
    if (!commit) {
      return std::unexpected(
          Error{commit.error().kind, fmt::format("{}: {}", entry.name, commit.error().message)});
    }
    prepared.commits.push_back(std::move(*commit));
  }
  return prepared;
}

// Whether all of it is in effect.
bool Reloads::put_into_effect(Prepared prepared) {
  bool success = true;
  for (size_t index = 0; index < entries_.size(); ++index) {
    try {
      prepared.commits[index]();
    } catch (const std::exception& thrown) {
      success = false;
      log_surely([&] {
        spdlog::error(
            "{}: what was read again is not in effect, or not all of it: {}. Reload once more",
            entries_[index].name, thrown.what());
      });
    }
  }
  std::swap(values_, prepared.values);
  log_surely([&] {
    if (!prepared.fixed.empty()) {
      spdlog::warn("these options differ now but take effect only after a restart: {}",
                   fmt::join(prepared.fixed, ", "));
    }
    if (success) spdlog::info("the configuration was read again");
  });
  return success;
}

}  // namespace lockstep
