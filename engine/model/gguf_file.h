// A GGUF model file (version 2 or 3, little endian), whole or split into -0000i-of-0000N parts:
// its metadata and the directory of its tensors. Everything in it is untrusted: sizes are checked
// before anything is allocated, extents against the file's size.
// Source: the GGUF specification (ggml/docs/gguf.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/file_reader.h"
#include "engine/model/gguf_part.h"

namespace lockstep {

class ByteSource;

class GgufFile {
 public:
  // Reads and checks the headers of the file and, if it is the first of a split set, of all parts.
  // Fails with kInvalidInput (naming file, field or tensor, and offset) or kMachineRefused.
  static Result<GgufFile> open(const std::filesystem::path& path);

  // The same over bytes in memory, for one part; for tests and fuzzing. `name` is used in messages.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string_view name);

  uint32_t version() const { return version_; }
  const std::vector<std::filesystem::path>& parts() const { return parts_; }
  // The parts' files, open as long as this object; none after parse().
  const std::vector<FileReader>& readers() const { return readers_; }
  uint64_t size_bytes() const { return size_bytes_; }  // of all parts
  // The bytes of each part before the tensors' data.
  const std::vector<uint64_t>& header_bytes() const { return header_bytes_; }

  // All but those of whole numbers.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr if there is none
  // Those whose names begin so, by name.
  std::vector<const GgufTensor*> find_tensors(std::string_view prefix) const;

  // Tensors of whole numbers (I32, I64), by name.
  const std::map<std::string, GgufTensor, std::less<>>& integer_tensors() const {
    return integer_tensors_;
  }
  // The elements of one of them; nullopt if there is none of this name. Fails with kInvalidInput
  // for one of more than a million, with kMachineRefused where the file cannot be read.
  Result<std::optional<std::vector<int64_t>>> read_integers(std::string_view name) const;

  // Adds another file's tensor under a name that is free here, and the files that the other's
  // tensors are in. CHECKs that both is so. Fails as open() where the files are gone.
  Result<void> borrow(const GgufFile& other, std::string_view tensor, const std::string& name);

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }

  // Typed access: an absent key gives nullopt; a key of another type, or a number that does not
  // fit, is an error that names the key, what it holds and what was wanted.
  Result<std::optional<std::string>> text(std::string_view key) const;
  Result<std::optional<uint64_t>> integer(std::string_view key) const;  // any integer type, >= 0
  Result<std::optional<double>> number(std::string_view key) const;     // any numeric type
  Result<std::optional<bool>> boolean(std::string_view key) const;
  // Pointers stay valid as long as this object; nullptr for an absent key.
  Result<const std::vector<std::string>*> texts(std::string_view key) const;
  Result<std::optional<std::vector<float>>> numbers(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> integers(std::string_view key) const;
  Result<std::optional<std::vector<bool>>> booleans(std::string_view key) const;

 private:
  // Joins one more part's header to what is there; its place among the parts is the next.
  Result<void> add_file(const std::filesystem::path& path);
  Result<void> add_part(const ByteSource& source, const std::filesystem::path& path);
  void add_tensor(GgufTensor tensor);  // of a name that is free
  Result<void> add_remaining_parts(const std::filesystem::path& first);

  uint32_t version_ = 0;
  uint64_t size_bytes_ = 0;
  std::vector<std::filesystem::path> parts_;
  std::vector<FileReader> readers_;
  std::vector<uint64_t> header_bytes_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
  std::map<std::string, GgufTensor, std::less<>> integer_tensors_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
};

// For what is needed before the load (rotary factors).
// Reads and dequantizes a whole tensor of an open file. Fails with kInvalidInput for one of more
// than a million elements, with kMachineRefused where the file cannot be read.
Result<std::vector<float>> read_tensor(const GgufFile& file, const GgufTensor& tensor);

}  // namespace lockstep
