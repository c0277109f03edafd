#include "server/http/descriptor_shares.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

namespace lockstep {
namespace {

// Files that come and go, the engine's devices and queues. Where few may be open, it has no more
// than half of them, but always some beyond what is open already.
constexpr size_t kOthers = 256;
constexpr size_t kOthersMin = 16;
// If not all fits, each share of the watchers is at most one of so many parts of what is left.
constexpr size_t kWatcherParts = 8;

size_t kept_of(size_t limit, size_t open) {
  return std::max(open + kOthersMin, std::min(kOthers, limit / 2));
}

}  // namespace

DescriptorShares share_descriptors(size_t limit, const DescriptorShares& wanted) {
  DescriptorShares shares;
  shares.kept = kept_of(limit, wanted.kept);
  const size_t left = limit > shares.kept ? limit - shares.kept : 0;
  const size_t part = left / kWatcherParts;
  size_t taken = 0;
  const auto give = [&](size_t& share, size_t want, size_t most) {
    share = std::max<size_t>(1, std::min(want, most));
    taken += share;
  };
  const size_t watchers = wanted.over_limit + wanted.probe_connections + wanted.probe_over_limit;
  const bool all_fits = watchers + wanted.connections <= left;
  give(shares.over_limit, wanted.over_limit, all_fits ? SIZE_MAX : part);
  if (wanted.probe_connections > 0) {
    give(shares.probe_connections, wanted.probe_connections, all_fits ? SIZE_MAX : part);
    give(shares.probe_over_limit, wanted.probe_over_limit, all_fits ? SIZE_MAX : part);
  }
  give(shares.connections, wanted.connections, left > taken ? left - taken : 0);
  return shares;
}

size_t raise_descriptor_limit(const DescriptorShares& wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return SIZE_MAX;
  const rlim_t all = std::max(kOthers, wanted.kept + kOthersMin) + wanted.connections +
                     wanted.over_limit + wanted.probe_connections + wanted.probe_over_limit;
  if (limit.rlim_cur < all) {
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = std::min(all, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  return limit.rlim_cur;
}

size_t open_descriptors() {
  // Not std::filesystem: where memory is refused its iterator ends the process.
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  size_t count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  constexpr size_t kOthersThere = 3;  // ".", ".." and the folder's own
  return count - std::min(count, kOthersThere);
}

}  // namespace lockstep
