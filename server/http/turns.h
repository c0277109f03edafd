// What waits, of clients that take turns: one that has much waiting does not delay another's first.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
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

  // Of the client whose turn it is, what has waited longest. Something must be waiting. Takes no
  // memory.
  Item next() {
    const auto found = waiting_.find(turns_.front());
    Item item = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) {
      waiting_.erase(found);
      turns_.pop_front();
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
    return item;
  }

 private:
  std::unordered_map<std::string, std::deque<Item>> waiting_;  // none of them empty
  std::list<std::string> turns_;  // the clients in waiting_, the next one first
};

}  // namespace lockstep
