#include "tests/emulators/gpu/instruction_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/emulators/gpu/control.h"

namespace lockstep::ptx {
namespace {

// An instruction that does more than compute, though its operands are registers and numbers.
struct Exchange {
  std::string_view name;
  Handler run;
  std::array<uint8_t, 2> written;  // bytes a lane of each operand that is written, up to a 0
  std::array<uint8_t, 4> read;
};
constexpr Exchange kExchanges[] = {
    {"shfl.sync.up.b32", &shuffle<Shuffle::kUp>, {4, 1}, {4, 4, 4, 4}},
    {"shfl.sync.down.b32", &shuffle<Shuffle::kDown>, {4, 1}, {4, 4, 4, 4}},
    {"shfl.sync.bfly.b32", &shuffle<Shuffle::kButterfly>, {4, 1}, {4, 4, 4, 4}},
    {"shfl.sync.idx.b32", &shuffle<Shuffle::kIndex>, {4, 1}, {4, 4, 4, 4}},
    {"vote.sync.ballot.b32", &ballot, {4}, {1, 4}},
    {"redux.sync.add.u32", &sum_of_lanes, {4}, {4, 4}},
    {"bar.warp.sync", &warp_barrier, {}, {4}},
    {"nanosleep.u32", &rest, {}, {4}},
    {"griddepcontrol.wait", &wait_for_launch, {}, {}},
    {"griddepcontrol.launch_dependents", &launch_dependents, {}, {}},
    {"cp.async.commit_group", &commit_copies, {}, {}},
    {"wgmma.fence.sync.aligned", &meet_for_products, {}, {}},
    {"wgmma.commit_group.sync.aligned", &meet_for_products, {}, {}},
    {"fence.proxy.async.shared::cta", &meet_for_products, {}, {}},
};

constexpr std::pair<std::string_view, Special> kSpecials[] = {
    {"%tid.x", Special::kThreadX},    {"%tid.y", Special::kThreadY},
    {"%tid.z", Special::kThreadZ},    {"%laneid", Special::kLane},
    {"%ntid.x", Special::kThreadsX},  {"%ntid.y", Special::kThreadsY},
    {"%ntid.z", Special::kThreadsZ},  {"%ctaid.x", Special::kBlockX},
    {"%ctaid.y", Special::kBlockY},   {"%ctaid.z", Special::kBlockZ},
    {"%nctaid.x", Special::kBlocksX}, {"%nctaid.y", Special::kBlocksY},
    {"%nctaid.z", Special::kBlocksZ},
};

bool begins_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// "u32" of "mov.u32"
std::string_view last_word(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

void InstructionDecoder::decode(const Names& names, const Statement& statement) {
  names_ = &names;
  statement_ = &statement;
  const std::string_view instruction = name();
  if (begins_with(instruction, "mov.")) return move();
  if (begins_with(instruction, "cvt.")) return conversion();
  // The table's names of chains are for carry() alone.
  for (const std::string_view chain :
       {"add.cc.", "addc.", "sub.cc.", "subc.", "mad.lo.cc.", "mad.hi.cc.", "madc."}) {
    if (begins_with(instruction, chain)) return carry();
  }
  if (const Operation* const operation = Operations::find(instruction)) {
    return computation(*operation);
  }
  if (!exchange() && !access() && !matrix_product() && !group_product() && !asynchronous() &&
      !atomic() && !barrier()) {
    throw WrongStatement("unknown instruction");
  }
}

void InstructionDecoder::want_operands(size_t count) const {
  if (statement_->operand_count != count) {
    throw WrongStatement(
        fmt::format("it has {} operands, not {}", count, statement_->operand_count));
  }
}

uint64_t InstructionDecoder::number(size_t operand) const {
  if (word(operand).kind != Word::Kind::kInteger) throw WrongStatement("not a number");
  return word(operand).bits;
}

uint32_t InstructionDecoder::target(const Word& word, uint32_t lane_bytes) const {
  const auto found = names_->find_register(word.name);
  if (!found) throw WrongStatement(fmt::format("'{}' is no register", word.name));
  const uint32_t its_bytes = draft_.registers[*found].lane_bytes;
  if (lane_bytes != 0 && its_bytes != lane_bytes) {
    throw WrongStatement(fmt::format("{} has {} bytes, not {}", word.name, its_bytes, lane_bytes));
  }
  return *found;
}

uint32_t InstructionDecoder::source(const Names& names, const Word& word, uint32_t lane_bytes) {
  if (word.kind != Word::Kind::kName) {
    const uint32_t float_bytes = word.kind == Word::Kind::kFloat32   ? 4
                                 : word.kind == Word::Kind::kFloat64 ? 8
                                                                     : lane_bytes;
    if (lane_bytes == 0 || float_bytes != lane_bytes) {
      throw WrongStatement(fmt::format("{} is no number of {} bytes", word.name, lane_bytes));
    }
    return draft_.constant(lane_bytes == 1 ? word.bits != 0 : word.bits, lane_bytes);
  }
  if (const auto found = names.find_register(word.name)) {
    const uint32_t its_bytes = draft_.registers[*found].lane_bytes;
    if (lane_bytes != 0 && its_bytes != lane_bytes) {
      throw WrongStatement(
          fmt::format("{} has {} bytes, not {}", word.name, its_bytes, lane_bytes));
    }
    return *found;
  }
  for (const auto& [special, which] : kSpecials) {
    if (special == word.name && lane_bytes == 4) return draft_.special(which);
  }
  // A variable's name is its address.
  const Place* const place = names.find_place(word.name);
  if (place == nullptr || place->values != nullptr || lane_bytes < 4) {
    throw WrongStatement(fmt::format("'{}' is no value of {} bytes", word.name, lane_bytes));
  }
  return draft_.constant(place->address, lane_bytes);
}

std::pair<uint32_t, uint64_t> InstructionDecoder::address(const Operand& operand,
                                                          std::string_view space,
                                                          uint32_t lane_bytes) {
  const auto offset = static_cast<uint64_t>(operand.offset);
  if (operand.kind != Operand::Kind::kAddress) throw WrongStatement("an address was expected");
  if (const Place* const place = names_->find_place(operand.words[0].name)) {
    if (place->space != space) {
      throw WrongStatement(fmt::format("{} is in {} memory", operand.words[0].name, place->space));
    }
    return {draft_.constant(0, lane_bytes), place->address + offset};
  }
  return {target(operand.words[0], lane_bytes), offset};
}

void InstructionDecoder::compute(std::string_view name, uint32_t result,
                                 std::span<const uint32_t> operands) {
  const Operation* const operation = Operations::find(name);
  if (operation == nullptr) throw WrongStatement(fmt::format("unknown instruction ({})", name));
  draft_.add(operation->run, statement_->offset, {&result, 1}, operands).pure_lane_bytes =
      operation->result;
}

void InstructionDecoder::computation(const Operation& operation) {
  size_t count = 0;
  while (count < operation.operands.size() && operation.operands[count] != 0) ++count;
  want_operands(1 + count);
  std::vector<uint32_t> operands;
  for (size_t i = 0; i < count; ++i) {
    operands.push_back(source(word(i + 1), operation.operands[i]));
  }
  compute(name(), target(word(0), operation.result), operands);
}

// Between integers, the register that is read may be wider than its type.
void InstructionDecoder::conversion() {
  std::string full_name(name());
  const Operation* operation = Operations::find(full_name);
  want_operands(word(2).kind == Word::Kind::kNone ? 2 : 3);
  if (statement_->operand_count == 2) {
    const uint32_t wide = draft_.registers[source(word(1), 0)].lane_bytes;
    if (operation == nullptr || operation->operands[0] != wide) {
      full_name += fmt::format("<{}", 8 * wide);
      operation = Operations::find(full_name);
    }
  }
  if (operation == nullptr) throw WrongStatement("unknown instruction");
  std::vector<uint32_t> operands;
  for (size_t i = 1; i < statement_->operand_count; ++i) {
    operands.push_back(source(word(i), operation->operands[i - 1]));
  }
  compute(full_name, target(word(0), operation->result), operands);
}

// Instructions of a chain read the flag if their name ends in c, and leave one with ".cc". The flag
// comes first: the value may take an operand's place.
void InstructionDecoder::carry() {
  const size_t base_end = name().find('.');
  std::string base(name().substr(0, base_end));
  std::string rest(name().substr(base_end));
  const bool reads = base.back() == 'c';
  if (!reads) base += 'c';
  const size_t flag = rest.find(".cc");
  const bool leaves = flag != std::string::npos;
  if (leaves) rest.erase(flag, 3);
  if (reads && !carry_) throw WrongStatement("no instruction before it leaves a carry");
  const size_t type_at = rest.rfind('.');
  // The values' type has no sign: it makes no difference but to mad.hi, which is only known
  // without.
  if (rest.substr(type_at + 1) == "s32" && base != "madc") rest[type_at + 1] = 'u';
  const uint32_t bytes = type_bytes(rest.substr(type_at + 1));
  const size_t count = base == "madc" ? 3 : 2;
  want_operands(1 + count);
  std::vector<uint32_t> operands;
  for (size_t i = 0; i < count; ++i) operands.push_back(source(word(i + 1), bytes));
  operands.push_back(reads ? *carry_ : draft_.constant(0, 1));
  if (leaves) {
    const uint32_t left = draft_.add_register(1);
    compute(fmt::format("{}{}.cc{}", base, rest.substr(0, type_at), rest.substr(type_at)), left,
            operands);
    carry_ = left;
  }
  compute(fmt::format("{}{}", base, rest), target(word(0), bytes), operands);
}

void InstructionDecoder::move() {
  want_operands(2);
  const Operand& to = statement_->operands[0];
  const Operand& from = statement_->operands[1];
  const std::string_view type = last_word(name());
  if (from.kind == Operand::Kind::kVector) return pack(from, type);
  if (to.kind == Operand::Kind::kVector) return unpack(to, type);
  if (from.words[0].name == "%globaltimer") {
    add(&read_timer, {target(to.words[0], 8)}, {}).pure_lane_bytes = 8;
    return;
  }
  const Operation* const operation = Operations::find(name());
  if (operation == nullptr) throw WrongStatement("unknown instruction");
  computation(*operation);
}

void InstructionDecoder::pack(const Operand& from, std::string_view type) {
  const uint32_t bytes = type_bytes(type);
  std::vector<uint32_t> operands;
  for (size_t i = 0; i < from.count; ++i) {
    operands.push_back(source(from.words[i], bytes / from.count));
  }
  compute(fmt::format("pack.{}.{}", operands.size(), type), target(word(0), bytes), operands);
}

void InstructionDecoder::unpack(const Operand& to, std::string_view type) {
  const uint32_t bytes = type_bytes(type);
  const uint32_t whole = source(word(1), bytes);
  for (size_t i = 0; i < to.count; ++i) {
    compute(fmt::format("unpack.{}.{}.{}", to.count, i, type),
            target(to.words[i], bytes / to.count), std::array{whole});
  }
}

bool InstructionDecoder::exchange() {
  const auto* found = std::begin(kExchanges);
  while (found != std::end(kExchanges) && found->name != name()) ++found;
  if (found == std::end(kExchanges)) return false;
  std::vector<uint32_t> written;
  std::vector<uint32_t> read;
  size_t next = 0;
  if (found->written[0] != 0) {
    const Operand& to = statement_->operands[next++];
    written.push_back(target(to.words[0], found->written[0]));
    if (found->written[1] != 0) {
      written.push_back(to.kind == Operand::Kind::kPair ? target(to.words[1], found->written[1])
                                                        : draft_.add_register(found->written[1]));
    }
  }
  for (size_t i = 0; i < found->read.size() && found->read[i] != 0; ++i) {
    read.push_back(source(word(next++), found->read[i]));
  }
  want_operands(next);
  add(found->run, written, read);
  return true;
}

bool InstructionDecoder::matrix_product() {
  Handler run = nullptr;
  if (name() == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") run = &multiply_bf16;
  if (name() == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") run = &multiply_f16;
  if (run == nullptr) return false;
  want_operands(4);
  constexpr std::array<uint8_t, 4> kCounts{4, 4, 2, 4};
  std::vector<uint32_t> registers;
  for (size_t i = 0; i < kCounts.size(); ++i) {
    const Operand& operand = statement_->operands[i];
    if (operand.count != kCounts[i]) throw WrongStatement("its vectors have 4, 4, 2, 4 elements");
    for (size_t k = 0; k < operand.count; ++k) {
      registers.push_back(i == 0 ? target(operand.words[k], 4) : source(operand.words[k], 4));
    }
  }
  add(run, std::span(registers).first(4), std::span(registers).subspan(4));
  return true;
}

// The sum, A, B's descriptor, whether it adds to the sum, 1, 1, 0 (nothing is negated or
// transposed).
bool InstructionDecoder::group_product() {
  constexpr std::string_view kStart = "wgmma.mma_async.sync.aligned.m64n";
  if (!begins_with(name(), kStart)) return false;
  Handler run = nullptr;
  want_operands(7);
  const bool adds = number(3) != 0;
  const std::string_view shape = name().substr(kStart.size());
  if (shape == "16k16.f32.bf16.bf16")
    run = adds ? &multiply_group<2, true> : &multiply_group<2, false>;
  if (shape == "32k16.f32.bf16.bf16")
    run = adds ? &multiply_group<4, true> : &multiply_group<4, false>;
  if (shape == "64k16.f32.bf16.bf16")
    run = adds ? &multiply_group<8, true> : &multiply_group<8, false>;
  if (run == nullptr || number(4) != 1 || number(5) != 1 || number(6) != 0) {
    throw WrongStatement("only some products of warp groups are known");
  }
  const Operand& sum = statement_->operands[0];
  const Operand& a = statement_->operands[1];
  if (shape[0] != (sum.count == 8    ? '1'
                   : sum.count == 16 ? '3'
                   : sum.count == 32 ? '6'
                                     : ' ') ||
      a.count != 4) {
    throw WrongStatement("its vectors have other numbers of elements");
  }
  std::vector<uint32_t> written;
  for (size_t i = 0; i < sum.count; ++i) written.push_back(target(sum.element(i), 4));
  std::vector<uint32_t> read;
  if (adds) read = written;
  for (size_t i = 0; i < a.count; ++i) read.push_back(source(a.words[i], 4));
  read.push_back(source(word(2), 8));
  add(run, written, read);
  return true;
}

bool InstructionDecoder::asynchronous() {
  if (name() == "wgmma.wait_group.sync.aligned") {
    want_operands(1);
    add(&meet_for_products, {}, {}).immediate = number(0);
    return true;
  }
  if (name() == "cp.async.wait_group") {
    want_operands(1);
    add(&wait_for_copies, {}, {}).immediate = number(0);
    return true;
  }
  const bool any_size = name() == "cp.async.ca.shared.global";
  if (!any_size && name() != "cp.async.cg.shared.global") return false;
  want_operands(3);
  const auto [to, to_offset] = address(statement_->operands[0], "shared", 4);
  const auto [from, from_offset] = address(statement_->operands[1], "global", 8);
  const uint64_t bytes = number(2);
  Handler run = nullptr;
  if (bytes == 16) run = &copy_later<16>;
  if (bytes == 8 && any_size) run = &copy_later<8>;
  if (bytes == 4 && any_size) run = &copy_later<4>;
  if (run == nullptr) throw WrongStatement("it cannot copy so many bytes");
  add(run, {}, {to, from}).immediate = to_offset << 32 | (from_offset & 0xffffffff);
  return true;
}

bool InstructionDecoder::atomic() {
  if (name() != "atom.acq_rel.gpu.global.add.u32") return false;
  want_operands(3);
  const auto [base, offset] = address(statement_->operands[1], "global", 8);
  const uint32_t added = source(word(2), 4);
  add(&atomic_add, {target(word(0), 4)}, {base, added}).immediate = offset;
  return true;
}

// All threads at barrier 0: what __syncthreads() is.
bool InstructionDecoder::barrier() {
  if (name() != "bar.sync") return false;
  want_operands(1);
  if (number(0) != 0) throw WrongStatement("only barrier 0 is known");
  add(&block_barrier, {}, {});
  return true;
}

bool InstructionDecoder::access() {
  const auto found = read_access_name(name());
  if (!found) return false;
  want_operands(2);
  const Operand& memory = statement_->operands[found->is_load ? 1 : 0];
  const Operand& values = statement_->operands[found->is_load ? 0 : 1];
  if (values.count != found->count) {
    throw WrongStatement(fmt::format("{} elements were expected", found->count));
  }
  if (found->space == "param") {
    if (const Place* const place = names_->find_place(memory.words[0].name)) {
      parameter(*found, *place);
      return true;
    }
  }
  const auto [base, offset] = address(memory, found->space, found->space == "shared" ? 4 : 8);
  // Numbers are as wide as the registers beside them.
  uint32_t number_bytes = std::max(2u, type_bytes(found->type));
  for (size_t i = 0; i < found->count; ++i) {
    const auto beside = names_->find_register(values.words[i].name);
    if (beside) number_bytes = draft_.registers[*beside].lane_bytes;
  }
  std::vector<uint32_t> registers;
  for (size_t i = 0; i < found->count; ++i) {
    const Word& value = values.words[i];
    const bool is_name = value.kind == Word::Kind::kName;
    registers.push_back(found->is_load ? target(value, 0)
                                       : source(value, is_name ? 0 : number_bytes));
  }
  const uint32_t register_bytes = draft_.registers[registers[0]].lane_bytes;
  for (const uint32_t r : registers) {
    if (draft_.registers[r].lane_bytes != register_bytes) {
      throw WrongStatement("its registers have several sizes");
    }
  }
  const Handler run = find_access(*found, register_bytes);
  if (run == nullptr) throw WrongStatement("unknown instruction");
  const std::array address_register{base};
  if (found->is_load) {
    add(run, registers, address_register).immediate = offset;
  } else {
    registers.insert(registers.begin(), base);
    add(run, {}, registers).immediate = offset;
  }
  return true;
}

// Loads or stores a parameter. All lanes share a launch's; each of a call's is a register.
void InstructionDecoder::parameter(const AccessName& name, const Place& place) {
  const Operand& memory = statement_->operands[name.is_load ? 1 : 0];
  const Operand& values = statement_->operands[name.is_load ? 0 : 1];
  const uint32_t bytes = type_bytes(name.type);
  if (place.values != nullptr) {
    const std::string copy = fmt::format("mov.b{}", 8 * bytes);
    if (name.count != 1) throw WrongStatement("a call's values are single ones");
    if (!name.is_load) {
      const uint32_t value = source(values.words[0], bytes);
      const auto [found, is_new] = place.values->try_emplace(memory.offset, 0);
      if (is_new) found->second = draft_.add_register(bytes);
      return compute(copy, found->second, std::array{value});
    }
    const auto found = place.values->find(memory.offset);
    if (found == place.values->end()) throw WrongStatement("nothing was stored there");
    return compute(copy, target(values.words[0], bytes), std::array{found->second});
  }
  if (!name.is_load) throw WrongStatement("a launch's parameters are only read");
  for (size_t i = 0; i < name.count; ++i) {
    const uint32_t to = target(values.words[i], 0);
    const uint32_t register_bytes = draft_.registers[to].lane_bytes;
    const Handler run = find_uniform_parameter(name.type, register_bytes);
    if (run == nullptr) throw WrongStatement("unknown instruction");
    Instruction& added = add(run, {to}, {});
    added.immediate = place.address + static_cast<uint64_t>(memory.offset) + i * bytes;
    added.pure_lane_bytes = static_cast<uint8_t>(register_bytes);
  }
}

}  // namespace lockstep::ptx
