#include "server/api/common/preparation_order.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "server/http/networks.h"

namespace lockstep {
namespace {

// Clients that are remembered though nothing of theirs is here: their credit is not full yet.
constexpr size_t kIdleClientsMax = 4096;

}  // namespace

void PreparationOrder::Credit::fill(double per_second, double most, Time now) {
  if (now > filled) seconds += per_second * std::chrono::duration<double>(now - filled).count();
  seconds = std::min(seconds, most);
  filled = std::max(filled, now);
}

double PreparationOrder::least_tag() const {
  std::optional<double> least;
  for (const auto& [name, client] : clients_) {
    if (client.jobs > 0) least = std::min(least.value_or(client.tag), client.tag);
  }
  return least.value_or(latest_tag_);
}

PreparationOrder::Id PreparationOrder::add(const std::string& client_name, size_t body_bytes,
                                           Time now) {
  if (clients_.size() > kIdleClientsMax) forget_idle(now);
  const double start = least_tag();
  Job job;
  job.client = client_name;
  job.budget = body_bytes <= limits_.small_body_bytes ? 0 : 1;
  job.bytes = std::min(body_bytes, budget_bytes(job.budget));
  heads_.resize(jobs_.size() + 1);
  const auto [place, is_new] = clients_.try_emplace(client_name);
  Client& client = place->second;
  if (is_new) client.credit = {limits_.client_credit_seconds, now};
  jobs_.emplace(next_id_, std::move(job));  // what throws leaves a client without a job
  if (client.jobs == 0) client.tag = std::max(client.tag, start);
  ++client.jobs;
  return next_id_++;
}

size_t PreparationOrder::budget_bytes(size_t budget) const {
  return budget == 0 ? limits_.small_budget_bytes : limits_.budget_bytes;
}

// The first waiting job of each client, in order. A job that has begun came before those that have
// not.
void PreparationOrder::find_heads() {
  ++round_;
  heads_.clear();
  for (const auto& [id, job] : jobs_) {
    if (job.state != State::kWaiting) continue;
    if (std::exchange(clients_.at(job.client).round, round_) != round_) heads_.push_back(id);
  }
  std::ranges::sort(heads_, {},
                    [&](Id id) { return std::pair(clients_.at(jobs_.at(id).client).tag, id); });
}

bool PreparationOrder::may_begin(const Job& job) {
  BodyBudget& budget = budgets_[job.budget];
  const Client& client = clients_.at(job.client);
  if (!may_serve(client.begun, begun_, limits_.begun)) return false;
  const size_t own = client.budget_bytes[job.budget];
  if (own > 0 && own + job.bytes > budget_bytes(job.budget) / 2) return false;
  if (budget.is_claimed) return false;
  if (budget.taken + job.bytes <= budget_bytes(job.budget)) return true;
  budget.is_claimed = true;
  return false;
}

// The job has begun.
bool PreparationOrder::may_go_on(Id id, const Job& job) const {
  if (job.held_bytes <= limits_.light_bytes) return true;
  const size_t own = clients_.at(job.client).held_bytes;
  if (held_bytes_ <= limits_.held_bytes && own <= 2 * (limits_.held_bytes - held_bytes_)) {
    return true;
  }
  const auto first =
      std::ranges::find_if(jobs_, [](const auto& entry) { return entry.second.has_begun; });
  return first->first == id;
}

void PreparationOrder::hold(Id id, size_t bytes) {
  Job& job = jobs_.at(id);
  const size_t before = std::exchange(job.held_bytes, bytes);
  for (size_t* const sum : {&held_bytes_, &clients_.at(job.client).held_bytes}) {
    *sum += bytes - before;  // also where they have become fewer
  }
}

bool PreparationOrder::may_be_brisk(const Job& job, Client& client, Time now) {
  if (job.has_sunk) return false;
  if (!has_credit_) credit_ = {limits_.credit_seconds, now};
  has_credit_ = true;
  credit_.fill(limits_.credit_per_second, limits_.credit_seconds, now);
  client.credit.fill(limits_.client_credit_per_second, limits_.client_credit_seconds, now);
  return credit_.seconds > 0 && client.credit.seconds > 0;
}

std::optional<PreparationOrder::Turn> PreparationOrder::next(Time now) {
  if (turns_ >= limits_.turns && brisk_turns_ >= limits_.turns) return std::nullopt;
  for (BodyBudget& budget : budgets_) budget.is_claimed = false;
  find_heads();
  for (const Id id : heads_) {
    Job& job = jobs_.at(id);
    const bool brisk = may_be_brisk(job, clients_.at(job.client), now);
    if ((brisk ? brisk_turns_ : turns_) >= limits_.turns) continue;
    const bool is_new = !job.has_begun;
    if (is_new ? !may_begin(job) : !may_go_on(id, job)) continue;
    give_turn(job, brisk);
    return Turn{id, is_new, brisk};
  }
  return std::nullopt;
}

void PreparationOrder::give_turn(Job& job, bool brisk) {
  Client& client = clients_.at(job.client);
  if (!job.has_begun) {
    job.has_begun = true;
    ++begun_;
    ++client.begun;
    budgets_[job.budget].taken += job.bytes;
    client.budget_bytes[job.budget] += job.bytes;
  }
  job.state = State::kTurn;
  job.is_brisk = brisk;
  job.turn_seconds = 0;
  latest_tag_ = std::max(latest_tag_, client.tag);
  ++(brisk ? brisk_turns_ : turns_);
}

void PreparationOrder::end_turn(Job& job) {
  --(job.is_brisk ? brisk_turns_ : turns_);
  job.state = State::kWaiting;
}

bool PreparationOrder::others_wait_before(const Client& client) const {
  return std::ranges::any_of(jobs_, [&](const auto& entry) {
    if (entry.second.state != State::kWaiting) return false;
    const Client& other = clients_.at(entry.second.client);
    return &other != &client && other.tag <= client.tag;
  });
}

bool PreparationOrder::charge(Id id, double seconds, Time now) {
  Job& job = jobs_.at(id);
  CHECK(job.state == State::kTurn, "job {} is charged without a turn", id);
  Client& client = clients_.at(job.client);
  client.tag += seconds;
  client.used += seconds;
  job.turn_seconds += seconds;
  const bool goes_on = may_go_on(id, job);
  if (job.is_brisk) {
    credit_.seconds -= seconds;
    client.credit.seconds -= seconds;
    const bool is_still_brisk =
        job.turn_seconds < limits_.brisk_seconds && may_be_brisk(job, client, now);
    if (is_still_brisk && goes_on) return true;
    job.has_sunk = true;
    end_turn(job);
    return false;
  }
  const bool has_time = job.turn_seconds < limits_.slice_seconds || !others_wait_before(client);
  if (has_time && goes_on) return true;
  end_turn(job);
  return false;
}

void PreparationOrder::end(Id id, double seconds, Time now) {
  hold(id, 0);
  static_cast<void>(charge(id, seconds, now));
  const auto found = jobs_.find(id);
  Job& job = found->second;
  if (job.state == State::kTurn) end_turn(job);
  Client& client = clients_.at(job.client);
  --client.jobs;
  --client.begun;
  --begun_;
  client.budget_bytes[job.budget] -= job.bytes;
  budgets_[job.budget].taken -= job.bytes;
  jobs_.erase(found);
}

// A client whose credit is full and whose time is not ahead of the others' is as a new one.
void PreparationOrder::forget_idle(Time now) {
  const double start = least_tag();
  std::erase_if(clients_, [&](const auto& entry) {
    const Client& client = entry.second;
    Credit credit = client.credit;
    credit.fill(limits_.client_credit_per_second, limits_.client_credit_seconds, now);
    return client.jobs == 0 && client.tag <= start &&
           credit.seconds >= limits_.client_credit_seconds;
  });
}

size_t PreparationOrder::waiting_count() const {
  return static_cast<size_t>(std::ranges::count_if(
      jobs_, [](const auto& entry) { return entry.second.state == State::kWaiting; }));
}

double PreparationOrder::used_seconds(const std::string& client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? 0 : found->second.used;
}

}  // namespace lockstep
