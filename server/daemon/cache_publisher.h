// Publishes what the prefix cache knows, for routers that send a request to where its prefix is: KV
// events as vLLM has them (deploy/kubernetes/README.md). Each message has three frames: the topic,
// the message's number (8 bytes, big-endian) and MessagePack of [seconds since 1970, [events], 0].
//   ["BlockStored", [hash], hash of the block before or nil, [token ids], tokens of a block,
//    nil, nil, nil] and, where requests have a cache_salt, of a first block [[salt]]
//   ["BlockRemoved", [hashes]]
//   ["AllBlocksCleared"]
// Events that were dropped take a number, too, so that a subscriber sees that some are missing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/cache_events.h"
#include "engine/base/json.h"
#include "server/daemon/event_socket.h"

namespace lockstep {

// The events of one message.
struct NumberedEvents {
  uint64_t number = 0;
  std::span<const CacheEvent> events;
};

// Events that have come, in messages that are numbered from `next` on.
std::vector<NumberedEvents> number_messages(std::span<const CacheEvent> events, uint64_t next);

// The events of a message; removals that follow one another are one.
Json event_list(std::span<const CacheEvent> events, size_t block_tokens);

class CachePublisher {
 public:
  // A message has no more, and so comes to some 25 KB.
  static constexpr size_t kMessageEventsMost = 64;

  // Starts the thread. `block_tokens`: of a block.
  CachePublisher(std::unique_ptr<EventSocket> socket, std::string topic, size_t block_tokens,
                 size_t queued_most = CacheEvents::kQueuedMost);
  ~CachePublisher() { finish(); }
  // Sends what is queued and joins the thread. Once the engine tells nothing any more.
  void finish();

  // For Engine::publish_cache_events().
  CacheEvents& events() { return events_; }

  // Any thread.
  uint64_t told_count() const { return events_.told_count(); }
  uint64_t dropped_count() const { return events_.dropped_count() + unsent_count_; }

 private:
  void work();
  bool send(const NumberedEvents& message) const;
  bool send_if_there_is_memory(const NumberedEvents& message) const;

  const std::unique_ptr<EventSocket> socket_;
  const std::string topic_;
  const size_t block_tokens_;
  CacheEvents events_;
  std::atomic<uint64_t> unsent_count_ = 0;  // events whose message could not be made or sent
  std::thread thread_;                      // last: it uses all of the above
};

// "kv@POD@MODEL". An empty pod: the host's name.
std::string kv_topic(std::string_view pod, std::string_view model);

}  // namespace lockstep
