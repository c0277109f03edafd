#include "engine/model/tensor_reader.h"

#include "engine/machine/file_reader.h"

namespace lockstep {

Result<std::vector<float>> read_tensor(const GgufFile& file, const GgufTensor& tensor) {
  constexpr uint64_t kMostElements = 1U << 20U;
  const uint64_t count = tensor.rows() * tensor.columns();
  if (count > kMostElements) {
    return invalid_input("tensor {} has {} elements; at most {} were expected", tensor.name, count,
                         kMostElements);
  }
  if (tensor.part >= file.parts().size()) {
    return invalid_input("tensor {} is in part {}, which is no file", tensor.name, tensor.part);
  }
  auto reader = FileReader::open(file.parts()[tensor.part]);
  if (!reader) return std::unexpected(reader.error());
  std::vector<std::byte> bytes(tensor.size_bytes);
  if (auto read = reader->read(tensor.offset, bytes); !read) return std::unexpected(read.error());
  std::vector<float> values(count);
  traits(tensor.format).dequantize(bytes.data(), count, values.data());
  return values;
}

}  // namespace lockstep
