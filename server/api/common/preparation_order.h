// Whose turn it is to prepare a request: to parse its body, render its template, tokenize its text
// and compile its grammar. No threads and no clock: times are values, so that it can be simulated.
//
// The rules:
//   - A turn lasts until the job ends or has had its slice of processor time and another job would
//     go first. At most `turns` jobs have one, and as many again that are brisk.
//   - Among clients the one goes first that has had the least processor time (start-time fair
//     queueing: Goyal, Vin, Cheng 1996; a client that comes anew starts where the others are).
//     Within a client, first come first served: so it has about one begun job that has no turn.
//     A small body with a dear template or grammar thus pays with its own client's turns. Time is
//     the measure here since it is what clients share; a key's allowance is charged in steps, which
//     no machine and no load changes (KeyLimits::charge_steps()).
//   - A job is brisk, which is to say of ordinary priority, for its first moments, while its client
//     has credit: a little processor time that each earns as time goes by, and all together.
//   - A body that is a value takes up to 56 times its text (empty lists, of which an endpoint makes
//     up to three values): those of jobs that have begun must fit a budget. Small bodies have one
//     of their own. One that is larger than its budget has it alone. A client whose bodies take
//     half of it begins no further one there. A job that waits for others' bodies to go is not
//     overtaken.
//   - Between two turns a job keeps what it has made: templates and grammars may take 64 MiB of
//     whatever body. So jobs that have begun are bounded in number, and a job that holds much goes
//     on only while all together hold no more than `held_bytes`. Of both, a client may have twice
//     what it leaves, as elsewhere (may_serve(), may_hold_body()), and its first job any place that
//     is left. The job that has begun before all others always goes on: so all come to an end. At
//     most `held_bytes`, that one job's and `begun` times `light_bytes` are held, and what each
//     takes before it is asked again.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct PreparationLimits {
  size_t turns = 1;  // jobs at once
  double slice_seconds = 0.002;
  double brisk_seconds = 0.001;  // of one job at most
  // Earned per second, and saved up to at most so much: by a client, by all together.
  double client_credit_per_second = 0.02;
  double client_credit_seconds = 0.010;
  double credit_per_second = 0.1;
  double credit_seconds = 0.050;
  size_t small_body_bytes = size_t{64} << 10U;
  size_t small_budget_bytes = size_t{2} << 20U;
  size_t budget_bytes = size_t{8} << 20U;  // two of the largest bodies that are let in by default
  size_t begun = 128;                      // jobs
  size_t held_bytes = size_t{256} << 20U;
  size_t light_bytes = size_t{1} << 20U;  // a job that holds no more is always let on
};

// Used by one thread at a time.
class PreparationOrder {
 public:
  using Id = uint64_t;
  using Time = std::chrono::steady_clock::time_point;
  struct Turn {
    Id id = 0;
    bool is_new = false;  // the job begins with it
    bool is_brisk = false;
  };

  explicit PreparationOrder(const PreparationLimits& limits) : limits_(limits) {}

  // A job waits from here on. Throws std::bad_alloc, and then nothing is added; nothing below takes
  // memory.
  Id add(const std::string& client, size_t body_bytes, Time now);
  // The next job that has a turn from here on; none: nobody waits, or all turns are taken.
  std::optional<Turn> next(Time now);
  // A job that has a turn has used so much processor time since it was last charged. False: its
  // turn is over, and it waits for the next one.
  bool charge(Id id, double seconds, Time now);
  // A job that has a turn holds so many bytes now. Where they are fewer than before, others may
  // have a turn: next() tells.
  void hold(Id id, size_t bytes);
  // The job has ended, in its turn.
  void end(Id id, double seconds, Time now);

  size_t waiting_count() const;
  size_t begun_count() const { return begun_; }  // jobs with a turn, and those between two
  size_t taken_bytes() const { return budgets_[0].taken + budgets_[1].taken; }
  size_t held_bytes() const { return held_bytes_; }
  double used_seconds(const std::string& client) const;  // since it was new; 0: not known

 private:
  struct Credit {
    double seconds = 0;
    Time filled = {};

    void fill(double per_second, double most, Time now);
  };
  struct Client {
    double tag = 0;   // processor time, and where it started
    double used = 0;  // processor time
    Credit credit;
    size_t jobs = 0;
    size_t begun = 0;  // of them
    size_t held_bytes = 0;
    uint64_t round = 0;                       // of find_heads() that has seen it
    std::array<size_t, 2> budget_bytes = {};  // that its bodies take, by budget
  };
  enum class State { kWaiting, kTurn };
  struct Job {
    std::string client;
    size_t budget = 0;  // which one
    size_t bytes = 0;   // what it takes of it
    State state = State::kWaiting;
    bool has_begun = false;
    size_t held_bytes = 0;
    bool is_brisk = false;    // its turn is
    bool has_sunk = false;    // it is never brisk again
    double turn_seconds = 0;  // used in this turn
  };
  struct BodyBudget {
    size_t taken = 0;
    bool is_claimed = false;  // while next() runs: by a job that does not fit yet
  };

  size_t budget_bytes(size_t budget) const;
  bool may_begin(const Job& job);
  bool may_go_on(Id id, const Job& job) const;
  bool may_be_brisk(const Job& job, Client& client, Time now);
  bool others_wait_before(const Client& client) const;
  void find_heads();
  void give_turn(Job& job, bool brisk);
  void end_turn(Job& job);
  void forget_idle(Time now);
  double least_tag() const;

  const PreparationLimits limits_;
  std::map<std::string, Client> clients_;
  std::map<Id, Job> jobs_;  // in the order in which they came
  std::vector<Id> heads_;   // of the last find_heads(); holds all jobs if need be
  uint64_t round_ = 0;      // number of the last find_heads()
  std::array<BodyBudget, 2> budgets_;
  Credit credit_;
  bool has_credit_ = false;  // credit_ has been filled once
  size_t begun_ = 0;
  size_t held_bytes_ = 0;
  size_t turns_ = 0;
  size_t brisk_turns_ = 0;
  double latest_tag_ = 0;
  Id next_id_ = 1;
};

}  // namespace lockstep
