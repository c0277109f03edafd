#include "engine/model_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <system_error>

namespace lockstep {
namespace {

// The one profile there is: prompts and generation compute the same function of a token and its
// sequence.
constexpr std::string_view kArithmetic = "exact";

// FNV-1a over what makes answers what they are.
class Fingerprint {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      hash_ = (hash_ ^ static_cast<unsigned char>(byte)) * 0x100000001B3U;
    }
  }
  void add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash_ = (hash_ ^ ((number >> static_cast<unsigned>(shift)) & 0xFFU)) * 0x100000001B3U;
    }
  }
  uint32_t folded() const { return static_cast<uint32_t>(hash_ ^ (hash_ >> 32U)); }

 private:
  uint64_t hash_ = 0xCBF29CE484222325U;
};

std::string_view most_common_format(const GgufFile& file) {
  std::array<uint64_t, kFormatCount> bytes = {};
  for (const GgufTensor& tensor : file.tensors()) {
    bytes[static_cast<size_t>(tensor.format)] += tensor.size_bytes;
  }
  const auto most = std::ranges::max_element(bytes);
  return traits(static_cast<Format>(most - bytes.begin())).name;
}

}  // namespace

ModelInfo describe_model(const GgufFile& file, const Model& model,
                         const std::filesystem::path& path) {
  ModelInfo info;
  const auto name = file.text("general.name");
  info.name = name && name->has_value() && !(*name)->empty() ? **name : path.stem().string();
  info.architecture = model.architecture;
  info.format = most_common_format(file);
  info.file_bytes = file.size_bytes();
  info.vocabulary_size = static_cast<uint32_t>(model.vocabulary_size);
  info.trained_context_tokens = static_cast<uint32_t>(model.trained_context_tokens);
  info.arithmetic = kArithmetic;
  std::error_code ignored;  // the file was just read; a time of 0 does no harm
  const auto changed = std::filesystem::last_write_time(path, ignored);
  info.file_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::file_clock::to_sys(changed).time_since_epoch())
                          .count();
  Fingerprint fingerprint;
  fingerprint.add(file.size_bytes());
  fingerprint.add(static_cast<uint64_t>(info.file_seconds));
  for (const GgufTensor& tensor : file.tensors()) {
    info.parameter_count += tensor.rows() * tensor.columns();
    fingerprint.add(tensor.name);
    fingerprint.add(tensor.offset);
    fingerprint.add(static_cast<uint64_t>(tensor.format));
  }
  info.fingerprint =
      fmt::format("lockstep-{}-{}-{:08x}", LOCKSTEP_VERSION, kArithmetic, fingerprint.folded());
  return info;
}

}  // namespace lockstep
