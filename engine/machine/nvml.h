// NVIDIA's management library, as far as it says what the CUDA runtime does not: which memory is
// free without taking any, and which links are NVLink. Comes with the driver, so it is looked for
// at run time. Only in builds with CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace lockstep {

class Nvml {
 public:
  // Null where there is no such library, or it does not work.
  static std::unique_ptr<Nvml> open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // GPUs by their Gpu::uuid. None: it does not say.
  std::optional<uint64_t> free_bytes(const std::string& uuid) const;
  // Whether they reach each other's memory over NVLink; not where it does not say.
  bool are_linked_by_nvlink(const std::string& uuid, const std::string& other_uuid) const;

 private:
  struct Calls;
  explicit Nvml(std::unique_ptr<Calls> calls);

  std::unique_ptr<Calls> calls_;
};

}  // namespace lockstep
