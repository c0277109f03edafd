#include <utility>

#include "engine/base/json.h"
#include "server/commands/commands.h"

namespace lockstep {
namespace {

Json to_json(const MachinePlan::Node& node) {
  Json pools = Json::array();
  for (const MachinePlan::HugePages& pool : node.huge_pages) {
    pools.push_back({{"page_bytes", pool.page_bytes},
                     {"total_pages", pool.total_pages},
                     {"free_pages", pool.free_pages}});
  }
  return {{"id", node.id},
          {"cores", node.core_count},
          {"processors", node.cpu_count},
          {"memory_bytes", node.memory_bytes},
          {"free_bytes", node.free_bytes},
          {"memory_allowed", node.memory_allowed},
          {"distances", node.distances},
          {"huge_pages", pools}};
}

Json to_json(const MachinePlan::Gpu& gpu) {
  Json links = Json::array();
  for (const MachinePlan::GpuPath& path : gpu.links) {
    links.push_back({{"gpu", path.gpu}, {"link", path.link}});
  }
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"pci_address", gpu.pci_address},
          {"node", gpu.node},
          {"memory_bytes", gpu.memory_bytes},
          {"free_bytes", gpu.free_bytes},
          {"compute_capability", gpu.compute_capability},
          {"multiprocessors", gpu.multiprocessor_count},
          {"bytes_per_second", gpu.bytes_per_second},
          {"links", links}};
}

Json to_json(const MachinePlan::Devices& devices) {
  Json body = {{"nodes", devices.nodes}, {"gpus", devices.gpus}, {"reason", devices.reason}};
  if (!devices.idle.empty()) body["idle"] = devices.idle;
  return body;
}

Json to_json(const MachinePlan::Rank& rank) {
  Json needs = Json::array();
  for (const MachinePlan::Need& need : rank.other_needs) {
    needs.push_back({{"what", need.what}, {"bytes", need.bytes}});
  }
  return {{"node", rank.node},
          {"gpu", rank.gpu ? Json(*rank.gpu) : Json(nullptr)},
          {"processors", rank.cpus},
          {"share", rank.share},
          {"expert_share", rank.expert_share},
          {"weight_bytes", rank.weight_bytes},
          {"kv_bytes", rank.kv_bytes},
          {"scratch_bytes", rank.scratch_bytes},
          {"other_needs", needs},
          {"pages", rank.pages},
          {"available_bytes", rank.available_bytes},
          {"read_bytes_per_token", rank.read_bytes},
          {"read_expert_bytes_per_token", rank.read_expert_bytes},
          {"bytes_per_second", rank.bytes_per_second},
          {"measured", rank.measured},
          {"seconds_per_token", rank.seconds_per_token}};
}

}  // namespace

std::string plan_json(const MachinePlan& plan, const Json& users) {
  Json body = {{"model", plan.model},
               {"architecture", plan.architecture},
               {"format", plan.format},
               {"isa", plan.instruction_set},
               {"arithmetic", plan.arithmetic},
               {"strategy", plan.strategy},
               {"context_tokens", plan.context_tokens},
               {"sequences", plan.sequence_count},
               {"model_weight_bytes", plan.model_weight_bytes},
               {"nodes", Json::array()},
               {"gpus", Json::array()},
               {"no_gpus", plan.no_gpus},
               {"devices", to_json(plan.devices)},
               {"faults", Json::array()},
               {"ranks", Json::array()},
               {"replicas", Json::array()},
               {"encoded", Json::array()},
               {"fits", plan.fits},
               {"misfit", plan.misfit},
               {"exchanges_per_token", plan.exchanges_per_token},
               {"seconds_per_exchange", plan.seconds_per_exchange},
               {"tokens_per_second", plan.tokens_per_second},
               {"one_rank_tokens_per_second", plan.one_rank_tokens_per_second},
               {"verdict", plan.verdict}};
  if (plan.state_slots) {
    body["states"] = {{"slots", *plan.state_slots},
                      {"checkpoints", *plan.state_slots - plan.sequence_count},
                      {"slot_kv_pages", plan.state_slot_pages},
                      {"rank_bytes", Json::array()}};
    for (const MachinePlan::Rank& rank : plan.ranks) {
      body["states"]["rank_bytes"].push_back(rank.state_bytes);
    }
  }
  if (plan.draft) {
    body["draft"] = {{"model", plan.draft->model},
                     {"architecture", plan.draft->architecture},
                     {"ranks", Json::array()}};
    for (const MachinePlan::Draft::Rank& rank : plan.draft->ranks) {
      body["draft"]["ranks"].push_back({{"weight_bytes", rank.weight_bytes},
                                        {"kv_bytes", rank.kv_bytes},
                                        {"scratch_bytes", rank.scratch_bytes}});
    }
  }
  for (const MachinePlan::Node& node : plan.nodes) body["nodes"].push_back(to_json(node));
  for (const MachinePlan::Gpu& gpu : plan.gpus) body["gpus"].push_back(to_json(gpu));
  for (const MachinePlan::Rank& rank : plan.ranks) body["ranks"].push_back(to_json(rank));
  for (const MachinePlan::Encoded& encoded : plan.encoded) {
    body["encoded"].push_back({{"format", encoded.format},
                               {"file_bytes", encoded.file_bytes},
                               {"memory_bytes", encoded.memory_bytes}});
  }
  for (const MachinePlan::Fault& fault : plan.faults) {
    body["faults"].push_back({{"sentence", fault.sentence}, {"command", fault.command}});
  }
  for (const MachinePlan::Replica& replica : plan.replicas) {
    body["replicas"].push_back({{"what", replica.what}, {"extra_bytes", replica.extra_bytes}});
  }
  if (!users.is_null()) body["users"] = users;
  return to_indented_text(body);
}

}  // namespace lockstep
