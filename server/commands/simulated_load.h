// The parts of a simulation of daemons under load that commands are given: what passes cost, which
// load comes, what a daemon has. Errors are kInvalidInput and name the option.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace lockstep {

// The most daemons that are simulated.
inline constexpr size_t kReplicasMost = 10'000;

// A file of --costs: the output of `lockstepd bench --json`.
struct CostsFile {
  PassCosts costs;
  size_t batch_tokens = 0;  // of a pass at most, as the rows were measured
  double deviation = 0;     // the largest relative one of a row from what the costs say
};

Result<CostsFile> read_costs(const std::filesystem::path& path);

// Requests of such a process, with the lengths of --prompt and --answer ("260", "100-400"); maybe
// none.
Result<std::vector<SimulatedRequest>> make_load(ArrivalProcess process, const std::string& prompt,
                                                const std::string& answer);

// A daemon of these options, whose contexts have so many tokens where --kv-pages is auto.
ReplicaOptions replica_options(const EngineOptions& engine, size_t batch_tokens,
                               size_t context_tokens);

// The fewest replicas with which so large a part of the requests is good; the error, which names no
// option, tells that none suffice.
Result<size_t> fewest_replicas(const FleetOptions& fleet, std::span<const SimulatedRequest> load,
                               double good_part);

}  // namespace lockstep
