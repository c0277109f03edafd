#include "server/api/body_room.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

// Two or three of the largest bodies that are let in by default; ordinary ones never wait.
constexpr size_t kRoomBytes = 8 << 20;
constexpr size_t kSmallBodyBytes = 64 << 10;
constexpr size_t kSmallRoomBytes = 2 << 20;
// From here on what is left behind is worth the milliseconds that it takes to give it back.
constexpr size_t kTrimBytes = 1 << 20;

// A million small pieces that are free again stay with the process unless it is told to look.
void trim(size_t most_bytes) {
  if (most_bytes >= kTrimBytes) ::malloc_trim(0);
}

// One pair for the process, since memory is.
BodyRoom& room_for(size_t body_bytes) {
  static BodyRoom small(kSmallRoomBytes);
  static BodyRoom large(kRoomBytes, trim);
  return body_bytes <= kSmallBodyBytes ? small : large;
}

struct Held {
  BodyRoom* room = nullptr;
  size_t bytes = 0;

  ~Held() { give_back(); }
  void give_back() {
    if (room != nullptr) std::exchange(room, nullptr)->leave(std::exchange(bytes, 0));
  }
};
thread_local Held held;

}  // namespace

BodyRoom::BodyRoom(size_t bytes, std::function<void(size_t)> on_empty)
    : bytes_(bytes), on_empty_(std::move(on_empty)) {}

size_t BodyRoom::enter(size_t body_bytes) {
  const size_t wanted = std::min(body_bytes, bytes_);
  {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = next_ticket_++;
    changed_.wait(lock, [&] { return ticket == turn_ && taken_ + wanted <= bytes_; });
    ++turn_;
    taken_ += wanted;
    most_taken_ = std::max(most_taken_, taken_);
  }
  changed_.notify_all();  // there may be room for the next one too
  return wanted;
}

void BodyRoom::leave(size_t taken_bytes) {
  size_t most = 0;
  {
    const std::lock_guard lock(mutex_);
    taken_ -= taken_bytes;
    if (taken_ == 0) most = std::exchange(most_taken_, 0);
  }
  changed_.notify_all();
  if (most > 0 && on_empty_) on_empty_(most);
}

size_t BodyRoom::taken_bytes() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

size_t BodyRoom::waiting() const {
  const std::lock_guard lock(mutex_);
  return next_ticket_ - turn_;
}

void RequestRoom::take(size_t body_bytes) {
  held.give_back();
  BodyRoom& room = room_for(body_bytes);
  held.bytes = room.enter(body_bytes);
  held.room = &room;
}

void RequestRoom::give_back() {
  held.give_back();
}

size_t RequestRoom::held_bytes() {
  return held.bytes;
}

}  // namespace lockstep
