#include "server/daemon/cache_publisher.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <new>
#include <utility>

#include "engine/base/thread_priority.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kMemoryPause{100};  // where there is none
constexpr std::chrono::milliseconds kPatience{1000};    // a thread that is idle looks this often

std::string big_endian(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>((number >> shift) & 0xffU));
  }
  return bytes;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json stored(const CacheEvent& event, size_t block_tokens) {
  Json array = {"BlockStored", Json::array({event.block}), nullptr, event.tokens, block_tokens};
  if (event.before) array[2] = *event.before;
  // No adapters; the medium is the engine's own cache, wherever that is.
  for (int unset = 0; unset < 3; ++unset) array.push_back(nullptr);
  if (!event.salt.empty()) array.push_back(Json::array({Json::array({event.salt})}));
  return array;
}

// Consecutive removals are one event.
void add_removed(uint64_t block, Json& list) {
  const bool goes_on = !list.empty() && list.back()[0] == "BlockRemoved";
  if (goes_on) return list.back()[1].push_back(block);
  list.push_back(Json::array({"BlockRemoved", Json::array({block})}));
}

}  // namespace

Json event_list(std::span<const CacheEvent> events, size_t block_tokens) {
  Json list = Json::array();
  for (const CacheEvent& event : events) {
    switch (event.kind) {
      case CacheEvent::Kind::kStored:
        list.push_back(stored(event, block_tokens));
        break;
      case CacheEvent::Kind::kRemoved:
        add_removed(event.block, list);
        break;
      case CacheEvent::Kind::kCleared:
        list.push_back(Json::array({"AllBlocksCleared"}));
        break;
    }
  }
  return list;
}

// A message ends where events are missing.
std::vector<NumberedEvents> number_messages(std::span<const CacheEvent> events, uint64_t next) {
  std::vector<NumberedEvents> messages;
  while (!events.empty()) {
    const auto gap = std::find_if(events.begin() + 1, events.end(),
                                  [](const CacheEvent& event) { return event.is_after_gap; });
    const size_t count =
        std::min(static_cast<size_t>(gap - events.begin()), CachePublisher::kMessageEventsMost);
    if (events.front().is_after_gap) ++next;
    messages.push_back({next++, events.first(count)});
    events = events.subspan(count);
  }
  return messages;
}

CachePublisher::CachePublisher(std::unique_ptr<EventSocket> socket, std::string topic,
                               size_t block_tokens, size_t queued_most)
    : socket_(std::move(socket)),
      topic_(std::move(topic)),
      block_tokens_(block_tokens),
      events_(queued_most),
      thread_([this] { work(); }) {
  pthread_setname_np(thread_.native_handle(), "kv-events");
}

void CachePublisher::finish() {
  events_.stop();
  if (thread_.joinable()) thread_.join();
}

// Below the engine's workers, whose processors it may share.
void CachePublisher::work() {
  lower_thread_priority();
  std::vector<CacheEvent> events;
  uint64_t next_number = 0;
  while (true) {
    try {
      if (!events_.take(events, kPatience)) return;
      if (events.empty()) socket_->tend();
      for (const NumberedEvents& message : number_messages(events, next_number)) {
        next_number = message.number + 1;
        if (!send_if_there_is_memory(message)) unsent_count_ += message.events.size();
      }
    } catch (const std::bad_alloc&) {  // of take() or number_messages()
      if (!events.empty()) ++next_number;
      unsent_count_ += events.size();
      std::this_thread::sleep_for(kMemoryPause);
    }
  }
}

bool CachePublisher::send_if_there_is_memory(const NumberedEvents& message) const {
  try {
    return send(message);
  } catch (const std::bad_alloc&) {
    std::this_thread::sleep_for(kMemoryPause);
    return false;
  }
}

bool CachePublisher::send(const NumberedEvents& message) const {
  const Json batch = {seconds_since_1970(), event_list(message.events, block_tokens_), 0};
  std::string payload;
  Json::to_msgpack(batch, payload);
  return socket_->send(topic_, big_endian(message.number), payload);
}

std::string kv_topic(std::string_view pod, std::string_view model) {
  if (!pod.empty()) return fmt::format("kv@{}@{}", pod, model);
  std::array<char, HOST_NAME_MAX + 1> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("kv@{}@{}", host.data(), model);
}

}  // namespace lockstep
