#include "server/daemon/log_output.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <new>
#include <thread>
#include <utility>

#include "engine/base/mutex.h"

namespace lockstep {
namespace {

// A pipe that poll() calls writable takes so much without blocking (pipe(7)).
constexpr size_t kWriteBytes = 4096;
constexpr int kPollMilliseconds = 50;  // after which the thread looks whether it shall end

}  // namespace

struct LogOutput::Queue {
  Queue(int descriptor_given, size_t bytes_most_given)
      : descriptor(descriptor_given), bytes_most(bytes_most_given) {}

  void push(std::string line) {
    {
      const MutexLock lock(mutex);
      while (!lines.empty() && bytes + line.size() > bytes_most) drop_first();
      const size_t added = line.size();
      lines.push_back(std::move(line));
      bytes += added;
    }
    changed.notify_all();
  }

  void drop_first() LOCKSTEP_REQUIRES(mutex) {
    bytes -= lines.front().size();
    lines.pop_front();
    dropped.fetch_add(1, std::memory_order_relaxed);
  }

  bool wait_until_written(std::chrono::milliseconds patience) {
    const auto deadline = ConditionVariable::deadline_in(patience);
    const MutexLock lock(mutex);
    while ((!lines.empty() || writing) && changed.wait_until(mutex, deadline)) {
    }
    return lines.empty() && !writing;
  }

  bool wait_until_idle(std::chrono::milliseconds patience) {
    const auto deadline = ConditionVariable::deadline_in(patience);
    const MutexLock lock(mutex);
    while (writing && changed.wait_until(mutex, deadline)) {
    }
    return !writing;
  }

  void run(spdlog::formatter& formatter) {
    uint64_t told = 0;  // of `dropped`
    while (true) {
      std::string line;
      {
        const MutexLock lock(mutex);
        writing = false;
        changed.notify_all();
        while (lines.empty() && !ending) changed.wait(mutex);
        if (lines.empty() || ending) return;
        line = std::move(lines.front());
        bytes -= line.size();
        lines.pop_front();
        writing = true;
      }
      if (!write(line)) {
        dropped.fetch_add(1, std::memory_order_relaxed);
      } else if (const uint64_t now = dropped.load(std::memory_order_relaxed); now != told) {
        if (write_loss(formatter, now - told)) told = now;
      }
    }
  }

  // False if the line is lost as well: the next one tells of all.
  bool write_loss(spdlog::formatter& formatter, uint64_t count) {
    try {
      return write(loss_line(formatter, count));
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  static std::string loss_line(spdlog::formatter& formatter, uint64_t count) {
    const std::string text = fmt::format(
        "{} log messages were dropped: the log is not read, or cannot be written, as "
        "fast as it grows",
        count);
    spdlog::memory_buf_t buffer;
    formatter.format(spdlog::details::log_msg("lockstepd", spdlog::level::warn, text), buffer);
    return {buffer.data(), buffer.size()};
  }

  // False if the line is lost.
  bool write(std::string_view line) {
    while (!line.empty()) {
      pollfd entry{.fd = descriptor, .events = POLLOUT, .revents = 0};
      if (poll(&entry, 1, kPollMilliseconds) <= 0) {
        if (given_up) return false;
        continue;
      }
      const ssize_t count = ::write(descriptor, line.data(), std::min(line.size(), kWriteBytes));
      if (count > 0) {
        line.remove_prefix(static_cast<size_t>(count));
      } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
        return false;  // a full disk, a reader that has gone
      }
    }
    return true;
  }

  const int descriptor;
  const size_t bytes_most;
  std::atomic<uint64_t> dropped = 0;
  std::atomic<bool> given_up = false;  // nobody waits for what is left
  Mutex mutex;
  ConditionVariable changed;
  std::deque<std::string> lines LOCKSTEP_GUARDED_BY(mutex);
  size_t bytes LOCKSTEP_GUARDED_BY(mutex) = 0;      // of `lines`
  bool writing LOCKSTEP_GUARDED_BY(mutex) = false;  // a line is out of `lines`, on its way
  bool ending LOCKSTEP_GUARDED_BY(mutex) = false;
  std::thread thread;
};

LogOutput::LogOutput(int descriptor, LogFormat format, size_t queue_bytes)
    : formatter_(make_log_formatter(format)),
      queue_(std::make_shared<Queue>(descriptor, queue_bytes)) {
  queue_->thread =
      std::thread([queue = queue_, formatter = formatter_->clone()] { queue->run(*formatter); });
  pthread_setname_np(queue_->thread.native_handle(), "log");
}

LogOutput::~LogOutput() {
  queue_->wait_until_written(kPatience);
  queue_->given_up = true;
  {
    const MutexLock lock(queue_->mutex);
    queue_->ending = true;
  }
  queue_->changed.notify_all();
  // Longer than a poll: unless a file system hangs, it is out by then.
  if (queue_->wait_until_idle(std::chrono::milliseconds(4 * kPollMilliseconds))) {
    queue_->thread.join();
  } else {
    queue_->thread.detach();
  }
}

void LogOutput::log(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t buffer;
  formatter_->format(message, buffer);
  queue_->push(std::string(buffer.data(), buffer.size()));
}

void LogOutput::flush() {
  queue_->wait_until_written(kPatience);
}

uint64_t LogOutput::dropped() const {
  return queue_->dropped.load(std::memory_order_relaxed);
}

}  // namespace lockstep
