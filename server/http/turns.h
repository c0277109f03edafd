// A queue of clients that take turns: one that has much waiting does not delay another's first
// item.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace lockstep {

// Used by one thread at a time.
template <typename Item>
class Turns {
 public:
  bool empty() const { return turns_.empty(); }
  size_t client_count() const { return turns_.size(); }

  // Throws std::bad_alloc, and then nothing is added.
  void add(const std::string& client, Item item) {
    auto found = waiting_.find(client);
    if (found != waiting_.end()) {
      found->second.push_back(std::move(item));
      return;
    }
    std::list<std::string> turn = {client};
    std::deque<Item> queue;
    queue.push_back(std::move(item));
    waiting_.emplace(client, std::move(queue));
    turns_.splice(turns_.end(), turn);
  }

  // Takes what has waited longest of the client whose turn it is. Something must be waiting. Takes
  // no memory.
  Item next() { return take(turns_.begin()); }

  // Whether something of a client waits for which may_go(client) holds.
  template <typename MayGo>
  bool any(const MayGo& may_go) const {
    return std::ranges::any_of(turns_, may_go);
  }

  // As next(), of the first such client, if there is one: those before it keep their turns.
  template <typename MayGo>
  std::optional<Item> next_of(const MayGo& may_go) {
    const auto turn = std::ranges::find_if(turns_, may_go);
    if (turn == turns_.end()) return std::nullopt;
    return take(turn);
  }

 private:
  Item take(std::list<std::string>::iterator turn) {
    const auto found = waiting_.find(*turn);
    Item item = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) {
      waiting_.erase(found);
      turns_.erase(turn);
    } else {
      turns_.splice(turns_.end(), turns_, turn);
    }
    return item;
  }

  std::unordered_map<std::string, std::deque<Item>> waiting_;  // none of them empty
  std::list<std::string> turns_;  // the clients in waiting_, the next one first
};

}  // namespace lockstep
