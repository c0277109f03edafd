// How many bodies may be values at once. A value takes up to forty times its text, and what is made
// of it (a rendered template, tokens) is as large: of all requests that have threads, few may hold
// one. Any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

namespace lockstep {

class BodyRoom {
 public:
  // For so many bytes of text together. `on_empty` is told the most that was in since the room was
  // empty before; by the thread that leaves, without a lock.
  explicit BodyRoom(size_t bytes, std::function<void(size_t most_bytes)> on_empty = {});

  // Blocks until a body of so many bytes fits beside those that are in, first come first served.
  // One that is larger than the room waits until it is alone. Returns what leave() takes.
  size_t enter(size_t body_bytes);
  void leave(size_t taken_bytes);

  size_t taken_bytes() const;
  size_t waiting() const;  // threads in enter()

 private:
  const size_t bytes_;
  const std::function<void(size_t)> on_empty_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t taken_ = 0;  // guarded by mutex_, as is all below
  size_t most_taken_ = 0;
  uint64_t next_ticket_ = 0;
  uint64_t turn_ = 0;  // whose ticket is the next to be let in
};

// The room that the request has which this thread serves: a thread serves one at a time. Whoever
// has it waits neither for the engine nor for a client, so that others always get theirs.
struct RequestRoom {
  RequestRoom() = default;
  RequestRoom(const RequestRoom&) = delete;
  RequestRoom& operator=(const RequestRoom&) = delete;
  ~RequestRoom() { give_back(); }

  // Blocks until there is room for the values of a body of this size. Small bodies have a room of
  // their own: they do not queue behind large ones. What the thread had is given back first.
  static void take(size_t body_bytes);
  // The values are gone. Nothing happens where none is held.
  static void give_back();
  static size_t held_bytes();  // of this thread
};

}  // namespace lockstep
