// A small model whose metadata and tensors the input makes and changes, through all that a start
// does with it: opened, built, laid out, loaded, and a prompt of two tokens and one that was
// generated computed. It may be refused where it is opened, built or laid out, before memory is
// taken; after that nothing may fail.
#include <fuzzer/FuzzedDataProvider.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/base/check.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/model/weight_loader.h"
#include "engine/placement/machine.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/memory_identity.h"
#include "engine/placement/model_info.h"
#include "engine/placement/placer.h"
#include "engine/runtime/executor.h"
#include "tests/fuzz/made_model.h"
#include "tests/fuzz/memory_file.h"

namespace lockstep {
namespace {

constexpr uint64_t kMemoryBytes = 16U << 20U;

void check_refused(const Error& error) {
  CHECK(error.kind == ErrorKind::kInvalidInput || error.kind == ErrorKind::kMachineRefused,
        "an error of kind {}", static_cast<int>(error.kind));
  CHECK(!error.message.empty(), "an error that says nothing");
}

Topology made_topology() {
  Topology topology;
  topology.cpus = {{.id = 0, .core = 0}, {.id = 1, .core = 1}};
  topology.nodes = {{.memory_bytes = kMemoryBytes,
                     .free_bytes = kMemoryBytes,
                     .cpu_count = 2,
                     .distances = {10},
                     .pools = {}}};
  topology.gpus_possible = false;
  return topology;
}

Machine made_machine() {
  Machine machine = Machine::read(/*with_gpus=*/false);
  machine.topology = made_topology();
  machine.memory = {.available_bytes = kMemoryBytes};
  return machine;
}

EngineOptions make_options(FuzzedDataProvider& input, const std::string& path) {
  EngineOptions options;
  options.model = path;
  options.devices = "cpu";
  options.rank_count = input.ConsumeIntegralInRange<uint32_t>(1, 2);
  options.strategy = input.ConsumeBool() ? "gather" : "reduce";
  options.worker_count = 1;
  options.context_tokens = input.ConsumeBool() ? 16 : 0;
  options.kv_pages = 1;
  options.sequence_count = 1;
  options.batch_tokens = 4;
  options.kv_format = input.PickValueInArray({"f16", "bf16", "f32", "q8_0", "q4_h", "q4_0"});
  options.arithmetic = input.ConsumeBool() ? "exact" : "fast";
  return options;
}

void compute(Executor& executor, size_t vocabulary) {
  const uint32_t page = 0;
  const auto last = static_cast<TokenId>(vocabulary - 1);
  Batch batch;
  batch.tokens = {{.token = 0, .position = 0}, {.token = last, .position = 1}};
  batch.page_tables = {{&page, 1}};
  batch.cleared_pages = {page};
  batch.state_slots = {0};
  batch.logit_tokens = {1};
  for (const bool generated : {false, true}) {
    if (generated) {
      batch.tokens = {{.token = 0, .position = 2}};
      batch.logit_tokens = {0};
      batch.cleared_pages.clear();
      batch.generated_tokens = 1;
    }
    const auto ran = executor.run(batch);
    CHECK(ran.has_value(), "{}", ran.error().message);
    const auto row = executor.logits(0).all();
    CHECK(row && row->size() == vocabulary, "not {} logits", vocabulary);
  }
}

void load_and_compute(const GgufFile& file, const Model& model, const KernelTable& kernels,
                      ModelLayout& layout) {
  for (RankPlace& place : layout.places) {  // on the machine that this runs on
    place.node = -1;
    place.cpus = {-1};
  }
  auto ranks = Ranks::make(model.graph, layout.split, layout.plan_options, layout.places);
  CHECK(ranks.has_value(), "{}", ranks.error().message);
  std::vector<LoadTarget> targets;
  for (size_t rank = 0; rank < (*ranks)->count(); ++rank) {
    Rank& target = (**ranks)[rank];
    targets.push_back({.plan = target.plan(),
                       .weights = target.addresses().at(ArenaOffset<std::byte>{Arena::kWeights}),
                       .workers = target.workers()});
  }
  std::atomic<uint64_t> bytes_done = 0;
  const auto loaded = load_weights(file, model.graph, targets, bytes_done, {.direct = false});
  CHECK(loaded.has_value(), "{}", loaded.error().message);
  CHECK(bytes_done == bytes_to_load(file, model.graph, targets), "{} bytes loaded",
        bytes_done.load());
  Executor executor(**ranks, kernels);
  compute(executor, model.vocabulary_size);
}

void start(FuzzedDataProvider& input) {
  static const Machine machine = made_machine();
  static const KernelTable& kernels = **choose_kernel_table("");
  const MemoryFile memory(MadeModel(input).bytes());
  const EngineOptions options = make_options(input, memory.path());
  const auto file = GgufFile::open(options.model);
  if (!file) return check_refused(file.error());
  const auto block = build_predicting_block({.file = *file}, 0);
  if (!block) check_refused(block.error());
  if (drafts_for_another(*file)) {
    const auto draft = build_drafting_model({.file = *file});
    if (!draft) check_refused(draft.error());
  }
  const auto model = build_model({.file = *file, .context_tokens = options.context_tokens});
  if (!model) return check_refused(model.error());
  const auto settings = parse(options, kernels, machine);
  if (!settings) return check_refused(settings.error());
  auto layout = Placer(*model, *settings, machine).place();
  if (!layout) return check_refused(layout.error());
  static_cast<void>(describe_model(*file, *model, options, *layout));
  const auto identity = identify_memory(*file, *model, options, kernels, *layout);
  CHECK(identity.has_value(), "{}", identity.error().message);
  if (auto sized = size_context(*model, *settings, machine, *layout); !sized) {
    return check_refused(sized.error());
  }
  load_and_compute(*file, *model, kernels, *layout);
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  lockstep::start(input);
  return 0;
}
