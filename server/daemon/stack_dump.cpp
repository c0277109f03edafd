#include "server/daemon/stack_dump.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kThreadsMost = 8192;
constexpr int kFramesMost = 48;
constexpr size_t kNameMost = 120;  // of a symbol; templates have long ones
constexpr int kAnswerMilliseconds = 500;
constexpr size_t kPipeBytes = 4096;  // which a pipe that poll() calls writable takes at once

// A thread's handler leaves this. `round` is written last, with release.
struct Stack {
  std::array<void*, kFramesMost> frames;
  int count = 0;
  std::atomic<uint32_t> round = 0;
};
// Global, since a signal handler has nothing else to find it by.
std::array<Stack, kThreadsMost> stacks;
std::atomic<uint32_t> wanted_round = 0;

int dump_signal() {
  return SIGRTMIN + 5;  // glibc keeps the first ones to itself; debuggers' habits end below
}

void note_stack(int, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto value = static_cast<uint32_t>(info->si_value.sival_int);
  const uint32_t index = value % kThreadsMost;
  const uint32_t round = value / kThreadsMost;
  if (info->si_code == SI_QUEUE && round == wanted_round.load(std::memory_order_acquire)) {
    Stack& stack = stacks[index];
    stack.count = backtrace(stack.frames.data(), kFramesMost);
    // The handler's own frames end where the interrupted one begins.
    const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
    void* const interrupted = reinterpret_cast<void*>(registers[REG_RIP]);
    auto* const end = stack.frames.data() + stack.count;
    auto* const first = std::find(stack.frames.data(), end, interrupted);
    if (first != end)
      stack.count =
          static_cast<int>(std::copy(first, end, stack.frames.data()) - stack.frames.data());
    stack.round.store(round, std::memory_order_release);
  }
  errno = saved_errno;
}

void sleep_milliseconds(long count) {
  const timespec pause{.tv_sec = 0, .tv_nsec = count * 1'000'000};
  nanosleep(&pause, nullptr);
}

// A line that is built without allocating, and short enough to be written at once: no other
// thread's comes into it. What does not fit is cut.
class Line {
 public:
  void add(std::string_view text) {
    const size_t count = std::min(text.size(), kMost - size_);
    std::memcpy(text_ + size_, text.data(), count);
    size_ += count;
  }
  void add_number(uint64_t number, int base = 10) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof(digits), number, base).ptr;
    add({digits, static_cast<size_t>(end - digits)});
  }
  // The tail of a line that is too long is kept.
  bool write(int descriptor, std::string_view tail) {
    const size_t count = std::min(tail.size(), kTail);
    std::memcpy(text_ + size_, tail.data(), count);
    return write_bounded(descriptor, {text_, std::exchange(size_, 0) + count});
  }

 private:
  static constexpr size_t kTail = 16;
  static constexpr size_t kMost = kPipeBytes - kTail;
  char text_[kMost + kTail];
  size_t size_ = 0;
};

std::string_view read_small(const char* path, char* buffer, size_t size) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t count = read(file, buffer, size);
  close(file);
  return {buffer, count > 0 ? static_cast<size_t>(count) : 0};
}

// "name, state S": from /proc/self/task/N/stat, whose second field is the name in brackets.
void add_name_and_state(Line& line, pid_t thread) {
  char path[64] = "/proc/self/task/";
  char* end = std::to_chars(path + std::strlen(path), path + 40, thread).ptr;
  std::strcpy(end, "/stat");
  char buffer[256];
  const std::string_view stat = read_small(path, buffer, sizeof(buffer));
  const size_t open = stat.find('(');
  const size_t close = stat.rfind(')');
  if (open == stat.npos || close == stat.npos || close < open) {
    line.add("gone");
    return;
  }
  for (const char letter : stat.substr(open + 1, close - open - 1)) {
    const bool plain = letter >= 0x20 && letter < 0x7f && letter != '"' && letter != '\\';
    line.add(plain ? std::string_view(&letter, 1) : "?");
  }
  line.add(", state ");
  line.add(stat.substr(close + 1).substr(1, 1));
}

// The numbers of this process's threads, without the caller's.
size_t list_threads(std::array<pid_t, kThreadsMost>& threads) {
  struct Entry {  // linux_dirent64 of getdents64(2)
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[1];
  };
  size_t count = 0;
  const int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(Entry) char buffer[4096];
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  while (folder >= 0) {
    const long bytes = syscall(SYS_getdents64, folder, buffer, sizeof(buffer));
    if (bytes <= 0) break;
    for (long at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      const char* name = buffer + at + offsetof(Entry, name);
      pid_t number = 0;
      const auto parsed = std::from_chars(name, name + std::strlen(name), number);
      if (parsed.ec == std::errc() && number != self && count < threads.size()) {
        threads[count++] = number;
      }
      at += entry->size;
    }
  }
  if (folder >= 0) close(folder);
  return count;
}

void ask(pid_t thread, uint32_t index, uint32_t round) {
  siginfo_t info{};
  info.si_signo = dump_signal();
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_int = static_cast<int>(round * kThreadsMost + index);
  syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, dump_signal(), &info);
}

void wait_for_answers(size_t count, uint32_t round) {
  for (int waited = 0; waited < kAnswerMilliseconds; waited += 10) {
    const bool all = std::all_of(stacks.begin(), stacks.begin() + static_cast<long>(count),
                                 [round](const Stack& stack) { return stack.round == round; });
    if (all) return;
    sleep_milliseconds(10);
  }
}

// The places in functions where the thread is; of those that wait for it, the address after the
// call, which may be the next function's if this one does not return.
void add_frame(Line& line, const ProgramSymbols& symbols, void* frame, bool innermost) {
  const uintptr_t after = innermost ? 0 : 1;
  const auto place = symbols.find(reinterpret_cast<uintptr_t>(frame) - after);
  line.add(place.name.substr(0, kNameMost));
  line.add("+0x");
  line.add_number(place.offset + after, 16);
}

// False if it takes nothing for a second. The last resort's ticks, a second apart, may interrupt
// the wait; what is waited after one is over before the next.
bool wait_until_writable(int descriptor) {
  for (int milliseconds = 1000; milliseconds > 0; milliseconds /= 2) {
    pollfd entry{.fd = descriptor, .events = POLLOUT, .revents = 0};
    const int ready = poll(&entry, 1, milliseconds);
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
  return false;
}

}  // namespace

bool write_bounded(int descriptor, std::string_view text) {
  while (!text.empty()) {
    if (!wait_until_writable(descriptor)) return false;
    const ssize_t count = write(descriptor, text.data(), std::min(text.size(), kPipeBytes));
    if (count > 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    }
  }
  return true;
}

bool write_line(int descriptor, const LogFrame& frame,
                std::initializer_list<std::string_view> parts) {
  Line line;
  line.add(frame.head);
  for (const std::string_view part : parts) line.add(part);
  return line.write(descriptor, frame.tail);
}

StackDump::StackDump() {
  // The first call loads the unwinder, which allocates.
  void* frame = nullptr;
  backtrace(&frame, 1);
  struct sigaction action {};
  action.sa_sigaction = note_stack;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(dump_signal(), &action, nullptr);
}

void StackDump::write(int descriptor, const LogFrame& frame) {
  static std::array<pid_t, kThreadsMost> threads;  // large for a stack
  static Line line;
  const uint32_t round = wanted_round.fetch_add(1, std::memory_order_acq_rel) + 1;
  const size_t count = list_threads(threads);
  for (uint32_t index = 0; index < count; ++index) ask(threads[index], index, round);
  wait_for_answers(count, round);
  for (size_t index = 0; index < count; ++index) {
    line.add(frame.head);
    line.add("stack of thread ");
    line.add_number(static_cast<uint64_t>(threads[index]));
    line.add(" (");
    add_name_and_state(line, threads[index]);
    line.add("):");
    const Stack& stack = stacks[index];
    if (stack.round.load(std::memory_order_acquire) == round) {
      for (int depth = 0; depth < stack.count; ++depth) {
        line.add(depth == 0 ? " " : " < ");
        add_frame(line, symbols_, stack.frames[static_cast<size_t>(depth)], depth == 0);
      }
    } else {
      line.add(" no answer");
    }
    if (!line.write(descriptor, frame.tail)) return;
  }
}

}  // namespace lockstep
