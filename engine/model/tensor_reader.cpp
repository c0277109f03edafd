#include "engine/model/tensor_reader.h"

#include "engine/base/check.h"

namespace lockstep {

Result<std::vector<float>> read_tensor(const GgufFile& file, const GgufTensor& tensor) {
  constexpr uint64_t kMostElements = 1U << 20U;
  const uint64_t count = tensor.rows() * tensor.columns();
  if (count > kMostElements) {
    return invalid_input("tensor {} has {} elements; at most {} were expected", tensor.name, count,
                         kMostElements);
  }
  CHECK(tensor.part < file.readers().size(), "tensor {} is in part {} of {} files", tensor.name,
        tensor.part, file.readers().size());
  std::vector<std::byte> bytes(tensor.size_bytes);
  const auto read = file.readers()[tensor.part].read(tensor.offset, bytes);
  if (!read) return std::unexpected(read.error());
  std::vector<float> values(count);
  traits(tensor.format).dequantize(bytes.data(), count, values.data());
  return values;
}

}  // namespace lockstep
