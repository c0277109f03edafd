// All that SIGHUP makes a running daemon read again, as one list: the options that may change at
// run time, and whatever its parts have added (files of keys, certificates). All of it or nothing:
// while one entry cannot be read, every other one stays as it was.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"
#include "server/options/options.h"

namespace lockstep {

class Reloads {
 public:
  // Puts into effect what has been read; must not block. One that throws is named in the log, and
  // the others take effect: so whatever may fail belongs into Prepare.
  using Commit = std::function<void()>;
  // Reads and checks, changes nothing yet. `options` are those that will be in effect: as the
  // configuration is now, but for what takes a restart.
  using Prepare = std::function<Result<Commit>(const Options& options)>;

  // How the last reload ended, for metrics.
  struct Outcome {
    bool success = true;
    double unix_seconds = 0;  // when it was; of the start until there was one
  };

  // `sources` is where the options come from; `values` are those in effect.
  Reloads(OptionSources sources, OptionValues values);
  ~Reloads() { stop(); }

  // `name` is what the log calls it. Before start().
  void add(std::string name, Prepare prepare);

  // From here on request() has an effect. Around each reload `on_begin` and `on_end` are called;
  // where there is no memory for what they do, the reload goes on without.
  void start(std::function<void()> on_begin = {}, std::function<void()> on_end = {});

  // No reload runs any more when it returns.
  void stop();

  // Any thread; returns at once. The reload runs on a thread of its own. Several requests in a row
  // may end in one reload, which begins after the last of them.
  void request();

  Outcome outcome() const;

 private:
  struct Entry {
    std::string name;
    Prepare prepare;
  };

  void work();
  void reload();
  struct Prepared {
    OptionValues values;                  // that will be in effect
    std::vector<std::string_view> fixed;  // options that differ and take a restart
    std::vector<Commit> commits;          // as entries_
  };
  Result<Prepared> prepare() const;
  bool put_into_effect(Prepared prepared);

  const OptionSources sources_;
  OptionValues values_;         // of its thread
  std::vector<Entry> entries_;  // not changed after start()
  std::function<void()> on_begin_;
  std::function<void()> on_end_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  bool requested_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Outcome outcome_ LOCKSTEP_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace lockstep
