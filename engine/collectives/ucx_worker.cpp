#include "engine/collectives/ucx_worker.h"

#include <poll.h>

#include <random>
#include <utility>

#include "engine/collectives/host_channel.h"

namespace lockstep {
namespace {

// UCX moves some KiB in a call; a look moves a message of pieces, if it is there.
constexpr int kCallsMost = 256;
// More than MessagePieces::kMessageBytes.
constexpr const char* kWholeBytesMost = "512k";

}  // namespace

Result<std::shared_ptr<UcxWorker>> UcxWorker::create(const UcxLibrary& ucx) {
  std::shared_ptr<UcxWorker> made(new UcxWorker(ucx));
  if (auto opened = made->open(); !opened) return std::unexpected(opened.error());
  return made;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
  if (context_ != nullptr) ucx_.cleanup(context_);
}

Result<void> UcxWorker::open() {
  ucp_config_t* config = nullptr;
  if (auto read = check(ucx_.config_read(nullptr, nullptr, &config)); !read) return read;
  // A link's stream shows whether the other host is there; UCX's own looks would count as bytes
  // moved.
  auto set = check(ucx_.config_modify(config, "KEEPALIVE_INTERVAL", "inf"));
  // A message of pieces goes at once: for longer ones both hosts have to come by several times.
  if (set) set = check(ucx_.config_modify(config, "RNDV_THRESH", kWholeBytesMost));
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  const ucs_status_t made = ucx_.init(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.config_release(config);
  if (auto checked = check(made); !checked) return checked;
  if (!set) return set;
  ucp_worker_params_t worker = {};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (auto created = check(ucx_.worker_create(context_, &worker, &worker_)); !created) {
    return created;
  }
  return check(ucx_.worker_descriptor(worker_, &descriptor_));
}

Result<void> UcxWorker::check(ucs_status_t status) const {
  if (status == UCS_OK) return {};
  return machine_refused("{}", ucx_.status_text(status));
}

Result<std::vector<std::byte>> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (auto got = check(ucx_.worker_address(worker_, &address, &bytes)); !got) {
    return std::unexpected(got.error());
  }
  const auto* const begin = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copied(begin, begin + bytes);
  ucx_.release_address(worker_, address);
  return copied;
}

uint64_t UcxWorker::new_link_number() {
  std::random_device random;
  return (uint64_t{random()} << 30U) ^ random();
}

bool UcxWorker::progress() {
  int calls = 0;
  while (!is_abandoned_ && calls < kCallsMost && ucx_.worker_progress(worker_) != 0) ++calls;
  return calls > 0;
}

void UcxWorker::sleep(std::chrono::nanoseconds most) {
  if (ucx_.worker_arm(worker_) != UCS_OK) return;  // there is something to do
  wait_for_events(descriptor_, POLLIN, most);
}

void UcxWorker::abandon(std::unique_ptr<MessagePieces> pieces) {
  is_abandoned_ = true;
  if (pieces) kept_.push_back(std::move(pieces));
}

}  // namespace lockstep
