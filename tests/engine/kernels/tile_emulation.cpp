#include "tests/engine/kernels/tile_emulation.h"

#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "engine/base/check.h"
#include "engine/kernels/kernel_choice.h"
#include "tests/engine/kernels/tile_registers.h"

namespace lockstep {

namespace {

// The data of the handler: a signal has no other way to them.
bool installed = false;
struct sigaction action_before;
std::array<std::atomic<uint64_t>, kTileOperationCount> counts;

// By the numbers that instructions give to the registers.
constexpr std::array<int, 16> kRegisterPlaces = {
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

void write_text(const char* text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

// Ends the process as the processor's exception would.
void stop(const TileFault& fault) {
  write_text("tile instruction refused: ");
  write_text(fault.reason);
  write_text("\n");
  struct sigaction end {};
  end.sa_handler = SIG_DFL;
  sigaction(fault.signal, &end, nullptr);
  raise(fault.signal);
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
  auto& values = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  GeneralRegisters registers;
  for (size_t i = 0; i < registers.size(); ++i) {
    registers[i] = static_cast<uint64_t>(values[kRegisterPlaces[i]]);
  }
  const auto instruction =
      decode_tile_instruction(reinterpret_cast<const uint8_t*>(values[REG_RIP]), registers);
  if (!instruction) {
    sigaction(SIGILL, &action_before, nullptr);  // the instruction is tried again, and goes there
    return;
  }
  const TileFault fault = execute_tile_instruction(*instruction);
  if (fault.signal != 0) return stop(fault);
  counts[static_cast<size_t>(instruction->operation)].fetch_add(1, std::memory_order_relaxed);
  values[REG_RIP] += instruction->bytes;
}

const KernelTable& table_called(std::string_view name) {
  for (const KernelTable* table : all_kernel_tables()) {
    if (table->name == name) return *table;
  }
  CHECK(false, "no row is called {}", name);
}

// Only tiles are emulated; and a processor with tiles that the system does not lend would do some
// of their instructions itself.
std::string find_obstacle() {
  if (!tile_support().tiles && has_vectors_of_amx()) return {};
  return "tile instructions run neither on AMX nor emulated: " +
         choose_kernel_table("amx").error().message;
}

}  // namespace

TileEmulation::TileEmulation() {
  if (machine_supports(table_called("amx"))) return;
  obstacle_ = find_obstacle();
  if (!obstacle_.empty()) return;
  CHECK(!installed, "there is another");
  for (auto& count : counts) count = 0;
  struct sigaction action {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  CHECK(sigaction(SIGILL, &action, &action_before) == 0, "{}", strerror(errno));
  installed = true;
  active_ = true;
}

TileEmulation::~TileEmulation() {
  if (!active_) return;
  sigaction(SIGILL, &action_before, nullptr);
  installed = false;
}

uint64_t TileEmulation::count(TileOperation operation) const {
  return counts[static_cast<size_t>(operation)];
}

bool has_vectors_of_amx() {
  return machine_supports(table_called("avx512bf16")) && __builtin_cpu_supports("avx512vbmi");
}

bool runs_here(const KernelTable& table) {
  if (machine_supports(table)) return true;
  return table.has_tiles && !tile_support().tiles && has_vectors_of_amx();
}

std::vector<const KernelTable*> tables_that_run_here() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table : all_kernel_tables()) {
    if (runs_here(*table)) tables.push_back(table);
  }
  return tables;
}

}  // namespace lockstep
