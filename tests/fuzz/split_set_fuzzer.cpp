// A model file in several parts, whose numbers, names and tensors the input makes, with bytes of
// their headers changed. It is refused, or its tensors lie where they are said to and can be read.
#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/model/gguf_file.h"
#include "tests/engine/model/gguf_writer.h"

namespace lockstep {
namespace {

constexpr uint64_t kReadBytesMax = 64 * 1024;

class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("lockstep-split-fuzzer-{}", ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path part(uint32_t number, uint32_t count) const {
    return path_ / fmt::format("model-{:05}-of-{:05}.gguf", number + 1, count);
  }

 private:
  std::filesystem::path path_;
};

// The right number, most of the time; of a type that the input chooses.
void add_number(FuzzedDataProvider& input, const char* key, uint32_t right,
                test::GgufWriter& writer) {
  const auto choice = input.ConsumeIntegralInRange(0, 15);
  if (choice == 0) return;
  const uint64_t value = choice == 1 ? input.ConsumeIntegral<uint64_t>() : right;
  switch (choice % 4) {
    case 0:
      writer.add(key, static_cast<uint16_t>(value));
      return;
    case 1:
      writer.add(key, value);
      return;
    case 2:
      writer.add(key, static_cast<int32_t>(value));
      return;
    default:
      writer.add(key, static_cast<uint8_t>(value));
      return;
  }
}

std::vector<std::byte> make_part(FuzzedDataProvider& input, uint32_t number, uint32_t count) {
  test::GgufWriter writer;
  if (count > 1 || input.ConsumeBool()) {
    add_number(input, "split.no", number, writer);
    add_number(input, "split.count", count, writer);
    add_number(input, "split.tensors.count", count, writer);
  }
  const auto formats = all_formats();
  const Format format = formats[input.ConsumeIntegralInRange<size_t>(0, formats.size() - 1)].format;
  const auto named = input.ConsumeIntegralInRange(0, 9) == 0 ? 0 : number;
  writer.add_tensor(fmt::format("tensor.{}", named), format,
                    {traits(format).block_elements, input.ConsumeIntegralInRange<uint64_t>(1, 4)});
  if (input.ConsumeIntegralInRange(0, 9) == 0) {
    writer.tensors.back().offset = input.ConsumeIntegral<uint64_t>();
  }
  auto bytes = writer.bytes();
  const auto changes = input.ConsumeIntegralInRange(0, 9);
  for (int change = 7; change < changes; ++change) {
    const auto at = input.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1);
    bytes[at] = std::byte{input.ConsumeIntegral<uint8_t>()};
  }
  if (changes == 6) bytes.resize(input.ConsumeIntegralInRange<size_t>(0, bytes.size()));
  return bytes;
}

void check_set(const GgufFile& file, uint32_t count) {
  CHECK(file.parts().size() <= count && file.readers().size() == file.parts().size(),
        "{} parts of {} files", file.parts().size(), count);
  for (const GgufTensor& tensor : file.tensors()) {
    CHECK(tensor.part < file.parts().size(), "part {}", tensor.part);
    const uint64_t bytes = file.readers()[tensor.part].size_bytes();
    CHECK(tensor.offset <= bytes && tensor.size_bytes <= bytes - tensor.offset,
          "{} bytes at {} of {}", tensor.size_bytes, tensor.offset, bytes);
    CHECK(file.find_tensor(tensor.name) == &tensor, "{} tensors", file.tensors().size());
    if (tensor.size_bytes > kReadBytesMax) continue;
    const auto values = read_tensor(file, tensor);
    CHECK(values && values->size() == tensor.rows() * tensor.columns(), "not the whole tensor");
  }
}

void open_set(FuzzedDataProvider& input) {
  const auto count = input.ConsumeIntegralInRange<uint32_t>(1, 4);
  const Folder folder;
  for (uint32_t number = 0; number < count; ++number) {
    if (input.ConsumeIntegralInRange(0, 19) == 0) continue;  // it is missing
    const auto bytes = make_part(input, number, count);
    std::ofstream(folder.part(number, count), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  const uint32_t first = input.ConsumeIntegralInRange(0, 9) == 0 ? count - 1 : 0;
  const auto file = GgufFile::open(folder.part(first, count));
  if (file) return check_set(*file, count);
  CHECK(!file.error().message.empty(), "an error that says nothing");
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  lockstep::open_set(input);
  return 0;
}
