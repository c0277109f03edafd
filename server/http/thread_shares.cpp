#include "server/http/thread_shares.h"

#include "server/http/networks.h"

namespace lockstep {

void ThreadShares::add(const std::string& client, const std::string& site) {
  const auto [entry, is_new] = clients_.try_emplace(client);
  Client& added = entry->second;
  if (is_new && !site.empty()) {
    try {
      added.site = &*sites_.try_emplace(site).first;
    } catch (...) {
      clients_.erase(entry);
      throw;
    }
  }
  ++added.own.requests;
  if (added.site != nullptr) ++added.site->second.requests;
}

bool ThreadShares::may_begin(const std::string& client) const {
  if (busy_ >= most_) return false;  // asked of each that waits
  const Client& asks = clients_.find(client)->second;
  if (!may_serve(asks.own.served, busy_, most_)) return false;
  return asks.site == nullptr || may_serve(asks.site->second.served, busy_, most_);
}

void ThreadShares::begin(const std::string& client) {
  Client& begins = clients_.find(client)->second;
  ++begins.own.served;
  if (begins.site != nullptr) ++begins.site->second.served;
  ++busy_;
}

void ThreadShares::end(const std::string& client) {
  const auto found = clients_.find(client);
  Client& ends = found->second;
  --ends.own.served;
  if (ends.site != nullptr) --ends.site->second.served;
  --busy_;
  forget(found);
}

void ThreadShares::drop(const std::string& client) {
  forget(clients_.find(client));
}

void ThreadShares::forget(Clients::iterator client) {
  Sites::value_type* const site = client->second.site;
  if (--client->second.own.requests == 0) clients_.erase(client);
  if (site != nullptr && --site->second.requests == 0) sites_.erase(sites_.find(site->first));
}

}  // namespace lockstep
