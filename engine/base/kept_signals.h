// The actions of the process's signals, kept from a library that changes them.
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>

namespace lockstep {

// Some libraries take signals of the process for themselves while they are loaded or begin. That
// may happen while one of these lives; then the actions that were there before are put back.
// Real-time signals are not looked at.
class KeptSignals {
 public:
  KeptSignals() {
    for (int each = 1; each < kEnd; ++each) kept_[index(each)] = read(each);
  }
  ~KeptSignals() {
    for (int each = 1; each < kEnd; ++each) {
      if (kept_[index(each)].known) sigaction(each, &kept_[index(each)].action, nullptr);
    }
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr int kEnd = 32;
  struct Kept {
    struct sigaction action = {};
    bool known = false;  // and may be set: the C library keeps some
  };

  static size_t index(int signal) { return static_cast<size_t>(signal); }
  static Kept read(int signal) {
    Kept kept;
    kept.known =
        signal != SIGKILL && signal != SIGSTOP && sigaction(signal, nullptr, &kept.action) == 0;
    return kept;
  }

  std::array<Kept, kEnd> kept_;
};

}  // namespace lockstep
