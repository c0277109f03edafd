// What waits, of clients that take turns: one that has much waiting does not delay another's first.
#pragma once

#include <cstddef>
#include <deque>
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

  void add(const std::string& client, Item item) {
    auto& queue = waiting_[client];
    if (queue.empty()) turns_.push_back(client);
    queue.push_back(std::move(item));
  }

  // Of the client whose turn it is, what has waited longest. Something must be waiting.
  Item next() {
    std::string client = std::move(turns_.front());
    turns_.pop_front();
    const auto found = waiting_.find(client);
    Item item = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) {
      waiting_.erase(found);
    } else {
      turns_.push_back(std::move(client));
    }
    return item;
  }

 private:
  std::unordered_map<std::string, std::deque<Item>> waiting_;  // none of them empty
  std::deque<std::string> turns_;  // the clients in waiting_, the next one first
};

}  // namespace lockstep
