// libFuzzer target: the bytes are a GGUF file. An accepted file must be consistent with itself, its
// typed accessors and its description must take whatever it holds.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/check.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model_description.h"

namespace lockstep {
namespace {

void check_tensors(const GgufFile& file, size_t size_bytes) {
  for (const GgufTensor& tensor : file.tensors()) {
    CHECK(tensor.rows() * row_bytes(tensor.format, tensor.columns()) == tensor.size_bytes,
          "{} bytes", tensor.size_bytes);
    CHECK(tensor.offset <= size_bytes && tensor.size_bytes <= size_bytes - tensor.offset,
          "{} bytes at {} of {}", tensor.size_bytes, tensor.offset, size_bytes);
    CHECK(file.find_tensor(tensor.name) == &tensor, "{} tensors", file.tensors().size());
  }
}

// Each key is one of exactly the types it can be taken for; none of the accessors may fail hard.
void read_metadata(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    const bool readable = file.text(key) || file.integer(key) || file.number(key) ||
                          file.boolean(key) || file.texts(key) || file.numbers(key) ||
                          file.integers(key);
    const auto* array = std::get_if<GgufArray>(&value);
    const bool truths = array != nullptr && std::holds_alternative<std::vector<bool>>(*array);
    CHECK(readable != truths, "a value of kind {}", value.index());
  }
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = lockstep::GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file) {
    CHECK(file.error().kind == lockstep::ErrorKind::kInvalidInput, "{}", file.error().message);
    return 0;
  }
  lockstep::check_tensors(*file, size);
  lockstep::read_metadata(*file);
  CHECK(!lockstep::describe(*file).dump().empty(), "no description");
  return 0;
}
