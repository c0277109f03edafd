// lockstepd plan: before anything is loaded, how the model would lie on this machine, what is wrong
// with the machine and how to mend it, and the speed to expect, with the arithmetic.
#include <iostream>
#include <optional>

#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/commands/plan_users.h"
#include "server/options/host_choice.h"

namespace lockstep {
namespace {

double mib(uint64_t bytes) {
  return static_cast<double>(bytes) / (1U << 20U);
}

double gigabytes(double bytes) {
  return bytes / 1e9;
}

// Processors as the kernel lists them: "0-3,8".
std::string cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (size_t begin = 0; begin < cpus.size();) {
    if (cpus[begin] < 0) return "not pinned";
    size_t end = begin + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += end - begin == 1 ? fmt::format("{}", cpus[begin])
                             : fmt::format("{}-{}", cpus[begin], cpus[end - 1]);
    begin = end;
  }
  return text;
}

void print_machine(const MachinePlan& plan) {
  std::cout << "machine\n";
  for (const MachinePlan::Node& node : plan.nodes) {
    std::cout << fmt::format(
        "  node {}: {} cores, {} processors, {:.0f} MiB of memory, {:.0f} free{}", node.id,
        node.core_count, node.cpu_count, mib(node.memory_bytes), mib(node.free_bytes),
        node.memory_allowed ? "" : " (not for us)");
    for (const MachinePlan::HugePages& pool : node.huge_pages) {
      if (pool.total_pages == 0) continue;
      std::cout << fmt::format(", {} of {} pages of {:.0f} MiB free", pool.free_pages,
                               pool.total_pages, mib(pool.page_bytes));
    }
    std::cout << fmt::format("; distances {}\n", fmt::join(node.distances, " "));
  }
}

void print_gpus(const MachinePlan& plan) {
  if (plan.gpus.empty()) std::cout << fmt::format("  no GPU: {}\n", plan.no_gpus);
  for (const MachinePlan::Gpu& gpu : plan.gpus) {
    std::cout << fmt::format("  gpu{}: {}, {}{}, {:.0f} MiB of memory, {:.0f} free", gpu.index,
                             gpu.name, gpu.pci_address,
                             gpu.node < 0 ? "" : fmt::format(" on node {}", gpu.node),
                             mib(gpu.memory_bytes), mib(gpu.free_bytes));
    if (gpu.bytes_per_second > 0) {
      std::cout << fmt::format(" at {:.0f} GB/s by its clock", gigabytes(gpu.bytes_per_second));
    }
    std::cout << fmt::format(", compute capability {}, {} multiprocessors", gpu.compute_capability,
                             gpu.multiprocessor_count);
    for (size_t index = 0; index < gpu.links.size(); ++index) {
      std::cout << fmt::format("{} gpu{} {}", index == 0 ? "; links:" : ",", gpu.links[index].gpu,
                               gpu.links[index].link);
    }
    std::cout << '\n';
  }
}

void print_devices(const MachinePlan& plan) {
  std::cout << fmt::format("\ndevices {}: {}\n", plan.devices.names, plan.devices.reason);
  for (const std::string& idle : plan.devices.idle) std::cout << fmt::format("  {}\n", idle);
}

void print_faults(const MachinePlan& plan) {
  if (plan.faults.empty()) {
    std::cout << "\nnothing is wrong with the machine's settings\n";
    return;
  }
  std::cout << "\nwrong with the machine, the worst first\n";
  for (const MachinePlan::Fault& fault : plan.faults) {
    std::cout << fmt::format("  {}\n    {}\n", fault.sentence, fault.command);
  }
}

std::string place_text(const MachinePlan::Rank& rank) {
  if (rank.gpu) return fmt::format("gpu{}", *rank.gpu);
  return rank.node < 0 ? "any" : std::to_string(rank.node);
}

// Prints the memory that ranks take of their GPUs beside what the table has.
void print_other_needs(const MachinePlan& plan) {
  for (size_t index = 0; index < plan.ranks.size(); ++index) {
    std::vector<std::string> needs;
    for (const MachinePlan::Need& need : plan.ranks[index].other_needs) {
      needs.push_back(fmt::format("{:.1f} MiB for {}", mib(need.bytes), need.what));
    }
    if (needs.empty()) continue;
    std::cout << fmt::format("  rank {} takes as well: {}\n", index, fmt::join(needs, ", "));
  }
}

// Prints the part of the ranks' scratch memory that holds states of sequences.
void print_states(const MachinePlan& plan) {
  if (!plan.state_slots) return;
  std::vector<std::string> parts;
  for (const MachinePlan::Rank& rank : plan.ranks) {
    parts.push_back(fmt::format("{:.1f}", mib(rank.state_bytes)));
  }
  const std::string beside =
      plan.state_slot_pages == 0
          ? ""
          : fmt::format("; each as large as {:.2f} KV pages", plan.state_slot_pages);
  std::cout << fmt::format(
      "  states of {} sequences and {} before drafts or at checkpoints, among scratch: {} MiB{}\n",
      plan.sequence_count, *plan.state_slots - plan.sequence_count, fmt::join(parts, ", "), beside);
}

// Prints what a smaller model that drafts takes of each rank's memory.
void print_draft(const MachinePlan& plan) {
  if (!plan.draft) return;
  std::cout << fmt::format("  draft model {} ({})\n", plan.draft->model, plan.draft->architecture);
  for (size_t index = 0; index < plan.draft->ranks.size(); ++index) {
    const MachinePlan::Draft::Rank& rank = plan.draft->ranks[index];
    std::cout << fmt::format("  {:>4} {:>4} {:>7} {:>6} {:>11.1f} {:>11.1f} {:>11.1f}\n", index,
                             place_text(plan.ranks[index]), plan.ranks[index].cpus.size(), "",
                             mib(rank.weight_bytes), mib(rank.kv_bytes), mib(rank.scratch_bytes));
  }
}

// The rank's share of what every token uses and, where it is another, its share of the experts.
std::string share_text(const MachinePlan::Rank& rank) {
  if (rank.share == rank.expert_share) return fmt::format("{:.1f}%", rank.share * 100);
  return fmt::format("{:.0f}+{:.0f}%", rank.share * 100, rank.expert_share * 100);
}

void print_ranks(const MachinePlan& plan) {
  std::cout << fmt::format(
      "\n{} ({}, {}), kernels {}, arithmetic {}, strategy {}, context {} tokens, {} sequences\n",
      plan.model, plan.architecture, plan.format, plan.instruction_set, plan.arithmetic,
      plan.strategy, plan.context_tokens, plan.sequence_count);
  std::cout << fmt::format("  {:>4} {:>4} {:>7} {:>6} {:>11} {:>11} {:>11} {:>11}  {:<18} {}\n",
                           "rank", "node", "workers", "share", "weights MiB", "KV MiB",
                           "scratch MiB", "avail. MiB", "pages", "processors");
  for (size_t index = 0; index < plan.ranks.size(); ++index) {
    const MachinePlan::Rank& rank = plan.ranks[index];
    std::cout << fmt::format(
        "  {:>4} {:>4} {:>7} {:>6} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.0f}  {:<18} {}\n", index,
        place_text(rank), rank.cpus.size(), share_text(rank), mib(rank.weight_bytes),
        mib(rank.kv_bytes), mib(rank.scratch_bytes), mib(rank.available_bytes), rank.pages,
        cpu_list(rank.cpus));
  }
  print_draft(plan);
  print_other_needs(plan);
  print_states(plan);
  std::cout << fmt::format("  the model's weights once: {:.1f} MiB", mib(plan.model_weight_bytes));
  for (const MachinePlan::Replica& replica : plan.replicas) {
    std::cout << fmt::format("; held more than once: {}, {:.2f} MiB", replica.what,
                             mib(replica.extra_bytes));
  }
  for (const MachinePlan::Encoded& encoded : plan.encoded) {
    std::cout << fmt::format("; {} takes {:.1f} MiB, of which the file has {:.1f}", encoded.format,
                             mib(encoded.memory_bytes), mib(encoded.file_bytes));
  }
  std::cout << (plan.fits ? "\n  it fits\n"
                          : fmt::format("\n  IT DOES NOT FIT: {}\n", plan.misfit));
}

void print_speed(const MachinePlan& plan) {
  if (plan.tokens_per_second == 0) {
    std::cout << "\nspeed to expect: " << plan.verdict << '\n';
    return;
  }
  std::cout << "\nspeed to expect when generating, one sequence, as far as memory sets it\n";
  for (size_t index = 0; index < plan.ranks.size(); ++index) {
    const MachinePlan::Rank& rank = plan.ranks[index];
    std::cout << fmt::format("  rank {}: {:.3f} GB of weights / {:.1f} GB/s{} = {:.3f} ms\n", index,
                             gigabytes(static_cast<double>(rank.read_bytes)),
                             gigabytes(rank.bytes_per_second), rank.measured ? "" : " by its clock",
                             rank.seconds_per_token * 1e3);
  }
  if (plan.ranks.size() > 1 && plan.seconds_per_exchange > 0) {
    std::cout << fmt::format("  exchange: {} x {:.2f} us = {:.3f} ms\n", plan.exchanges_per_token,
                             plan.seconds_per_exchange * 1e6,
                             plan.exchanges_per_token * plan.seconds_per_exchange * 1e3);
  }
  std::cout << fmt::format(
      "  1 / ({:.3f} ms + {:.3f} ms) = at most {:.1f} tokens/s\n", plan.read_seconds * 1e3,
      plan.exchanges_per_token * plan.seconds_per_exchange * 1e3, plan.tokens_per_second);
  std::cout << "  " << plan.verdict << '\n';
}

}  // namespace

int run_plan(const std::vector<std::string>& arguments) {
  CommandLine line("plan",
                   "Shows how the model would lie on this machine, what is wrong with the machine, "
                   "and the speed to expect. Loads nothing.",
                   kPlan);
  bool json = false;
  bool measure = true;
  line.app().add_flag("--json", json, "As JSON");
  line.app().add_flag("!--no-measure", measure,
                      "Leave out the speed, which takes seconds and an idle machine to measure");
  UsersOptions users;
  add_users_options(line.app(), users);
  line.app().footer(
      "Exit codes: 0; 1 where the model does not fit or a GPU is not there; 2 for what was given.");
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  Options options = to_quiet_options(*values);
  start_log(options);
  if (const auto given = check_model_given(options); !given) return report(given.error());
  const auto hosts = choose_hosts(options.hosts, process_environment());
  if (!hosts) return report(hosts.error());
  if (hosts->is_group() && users.users > 0) {
    return report({ErrorKind::kInvalidInput,
                   "--users counts machines that each hold the model: leave out --hosts"});
  }
  if (hosts->is_group()) {
    options.engine.hosts = *hosts;
    return print_hosts_plan(options.engine, json);
  }
  const auto plan = plan_machine(options.engine, measure);
  if (!plan) return report(plan.error());
  std::optional<UsersPlan> fleet;
  if (users.users > 0 && plan->fits) {
    auto planned = plan_users(users, options.engine, *plan);
    if (!planned) return report(planned.error());
    fleet = *planned;
  }
  if (json) {
    std::cout << plan_json(*plan, fleet ? users_json(users, *fleet) : Json()) << '\n';
  } else {
    print_machine(*plan);
    print_gpus(*plan);
    print_devices(*plan);
    print_faults(*plan);
    print_ranks(*plan);
    if (measure) print_speed(*plan);
    if (fleet) print_users(users, *fleet);
  }
  return plan->fits ? 0 : 1;
}

}  // namespace lockstep
