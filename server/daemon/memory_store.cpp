#include "server/daemon/memory_store.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <set>

#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr int kFirstPassed = 3;  // SD_LISTEN_FDS_START
constexpr size_t kPassedMax = 4096;
constexpr int kStorePatienceMilliseconds = 1000;
constexpr std::string_view kPrefixes[] = {"lockstep-weights", "lockstep-kv-"};

std::optional<size_t> number(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Passed {
  std::string name;
  int descriptor = -1;
};

// Those whose names are ours.
std::vector<Passed> passed_memory(const EnvironmentVariables& environment) {
  const auto count = number(value_of(environment, "LISTEN_FDS"));
  if (!count || *count > kPassedMax) return {};
  if (number(value_of(environment, "LISTEN_PID")) != static_cast<size_t>(::getpid())) return {};
  std::vector<Passed> passed;
  std::string_view names = value_of(environment, "LISTEN_FDNAMES");
  for (size_t index = 0; index < *count; ++index) {
    const size_t end = std::min(names.find(':'), names.size());
    const std::string_view name = names.substr(0, end);
    names.remove_prefix(std::min(names.size(), end + 1));
    const bool ours = std::ranges::any_of(
        kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (ours) passed.push_back({std::string(name), kFirstPassed + static_cast<int>(index)});
  }
  return passed;
}

}  // namespace

MemoryKeeping choose_memory_keeping(std::string_view option,
                                    const EnvironmentVariables& environment) {
  if (option == "false") return MemoryKeeping::kNo;
  if (value_of(environment, "NOTIFY_SOCKET").empty()) {
    if (option == "true") {
      spdlog::warn(
          "keep-weights: there is no service manager (NOTIFY_SOCKET is not set) that could "
          "keep the weights; start lockstepd as a service of Type=notify");
    }
    return MemoryKeeping::kNo;
  }
  return option == "true" ? MemoryKeeping::kAlways : MemoryKeeping::kWhereHuge;
}

std::vector<KeptDescriptor> take_kept_memory(const EnvironmentVariables& environment) {
  std::vector<KeptDescriptor> kept;
  for (const Passed& passed : passed_memory(environment)) {
    // Fails for a number that is not open.
    if (::fcntl(passed.descriptor, F_SETFD, FD_CLOEXEC) != 0) continue;
    kept.push_back({passed.name, Descriptor(passed.descriptor)});
  }
  return kept;
}

MemoryStore::MemoryStore(const ServiceNotifier& notifier, const EnvironmentVariables& environment)
    : notifier_(notifier), limit_(value_of(environment, "FDSTORE")) {
  for (Passed& passed : passed_memory(environment)) stored_.push_back(std::move(passed.name));
}

void MemoryStore::replace(const MemoryToKeep& memory) {
  if (!notifier_.is_there() || memory.is_kept_already) return;
  if (stored_.empty() && memory.entries.empty()) return;
  bool told = true;
  const std::set<std::string> names(stored_.begin(), stored_.end());
  for (const std::string& name : names) {
    told = notifier_.send(fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name)) && told;
  }
  stored_.clear();
  const bool stores = told && has_space_for(memory.entries.size());
  for (const MemoryToKeep::Entry& entry : memory.entries) {
    if (!stores) break;
    told = told && notifier_.send(fmt::format("FDSTORE=1\nFDPOLL=0\nFDNAME={}", entry.name),
                                  std::span(&entry.descriptor, 1));
    stored_.push_back(entry.name);
  }
  if (!told || !wait_until_taken()) {
    spdlog::warn(
        "the service manager did not say that it keeps the weights: if it does not, the "
        "next start reads them from the model file");
  } else if (stores && !memory.entries.empty()) {
    spdlog::info(
        "the service manager was given {} descriptors of weights and KV memory for the "
        "next start",
        memory.entries.size());
  }
}

bool MemoryStore::has_space_for(size_t count) const {
  const auto most = number(limit_);
  if (!most || *most >= count) return true;
  spdlog::warn(
      "the service manager keeps {} descriptors at most, the weights and the KV cache are "
      "{}: they are not kept; raise FileDescriptorStoreMax=",
      *most, count);
  return false;
}

// It closes its end of a pipe when it has done all that it was told before.
bool MemoryStore::wait_until_taken() const {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const int passed = writing.number();
  if (!notifier_.send("BARRIER=1", std::span(&passed, 1))) return false;
  writing.close();
  pollfd entry{.fd = reading.number(), .events = 0, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, kStorePatienceMilliseconds);
  } while (ready < 0 && errno == EINTR);
  return ready > 0 && (entry.revents & POLLHUP) != 0;
}

}  // namespace lockstep
