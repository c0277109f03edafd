#include "server/daemon/program_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

std::span<const char> map_program() {
  const int descriptor = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  struct stat status {};
  void* address = MAP_FAILED;
  if (fstat(descriptor, &status) == 0 && status.st_size > 0) {
    address =
        mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  close(descriptor);
  if (address == MAP_FAILED) return {};
  return {static_cast<const char*>(address), static_cast<size_t>(status.st_size)};
}

// `count` records from `offset` on; none if the file is too short for them.
template <typename T>
std::span<const T> records(std::span<const char> file, uint64_t offset, uint64_t count) {
  if (offset > file.size() || count > (file.size() - offset) / sizeof(T)) return {};
  return {reinterpret_cast<const T*>(file.data() + offset), count};
}

}  // namespace

ProgramSymbols::ProgramSymbols() : file_(map_program()) {
  const auto add = [](dl_phdr_info* info, size_t, void* modules) {
    Module module{.name = info->dlpi_name, .base = info->dlpi_addr, .end = info->dlpi_addr};
    for (const auto& segment : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
      if (segment.p_type != PT_LOAD) continue;
      module.end =
          std::max<uintptr_t>(module.end, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
    }
    module.name.erase(0, module.name.rfind('/') + 1);
    if (module.name.empty()) module.name = "lockstepd";  // the first: the program itself
    static_cast<std::vector<Module>*>(modules)->push_back(std::move(module));
    return 0;
  };
  dl_iterate_phdr(add, &modules_);
  read_functions();
}

ProgramSymbols::~ProgramSymbols() {
  if (!file_.empty()) munmap(const_cast<char*>(file_.data()), file_.size());
}

void ProgramSymbols::read_functions() {
  if (modules_.empty() || file_.size() < sizeof(Elf64_Ehdr)) return;
  const auto& head = *reinterpret_cast<const Elf64_Ehdr*>(file_.data());
  const auto sections = records<Elf64_Shdr>(file_, head.e_shoff, head.e_shnum);
  const auto table = std::ranges::find(sections, uint32_t{SHT_SYMTAB}, &Elf64_Shdr::sh_type);
  if (table == sections.end() || table->sh_link >= sections.size()) return;
  const Elf64_Shdr& text = sections[table->sh_link];
  const auto names = records<char>(file_, text.sh_offset, text.sh_size);
  if (names.empty() || names.back() != '\0') return;
  names_ = {names.data(), names.size()};
  const uintptr_t base = modules_.front().base;
  for (const Elf64_Sym& symbol :
       records<Elf64_Sym>(file_, table->sh_offset, table->sh_size / sizeof(Elf64_Sym))) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0) continue;
    if (symbol.st_name >= names_.size()) continue;
    functions_.push_back(
        {base + symbol.st_value, base + symbol.st_value + symbol.st_size, symbol.st_name});
  }
  std::ranges::sort(functions_, {}, &Function::begin);
}

ProgramSymbols::Place ProgramSymbols::find(uintptr_t address) const {
  auto after = std::ranges::upper_bound(functions_, address, {}, &Function::begin);
  if (after != functions_.begin() && address < (--after)->end) {
    return {names_.substr(after->name, std::strlen(names_.data() + after->name)),
            address - after->begin};
  }
  for (const Module& module : modules_) {
    if (address >= module.base && address < module.end) {
      return {module.name, address - module.base};
    }
  }
  return {"unknown", address};
}

}  // namespace lockstep
