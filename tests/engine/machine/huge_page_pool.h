// A pool of huge pages for the length of a test; as it was afterwards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep {

class HugePagePool2MiB {
 public:
  HugePagePool2MiB() = default;
  ~HugePagePool2MiB() {
    if (grown_) write_total(total_before_);
  }
  HugePagePool2MiB(const HugePagePool2MiB&) = delete;
  HugePagePool2MiB& operator=(const HugePagePool2MiB&) = delete;

  // Sees to it that `pages` are free on the node. False where that cannot be done.
  bool reserve(int node, uint64_t pages) {
    folder_ =
        "/sys/devices/system/node/node" + std::to_string(node) + "/hugepages/hugepages-2048kB";
    if (!std::filesystem::exists(folder_)) return false;
    if (free_pages() >= pages) return true;
    total_before_ = read("nr_hugepages");
    grown_ = true;
    write_total(total_before_ + pages - free_pages());
    return free_pages() >= pages;
  }

  uint64_t free_pages() const { return read("free_hugepages"); }

 private:
  uint64_t read(const char* name) const {
    std::ifstream file(folder_ / name);
    uint64_t number = 0;
    file >> number;
    return number;
  }
  void write_total(uint64_t pages) const { std::ofstream(folder_ / "nr_hugepages") << pages; }

  std::filesystem::path folder_;
  uint64_t total_before_ = 0;
  bool grown_ = false;
};

}  // namespace lockstep
