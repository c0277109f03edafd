// A record: a file that holds one page of the cache, or the states of one slot, all ranks' parts of
// it one after another. A
// header comes first; it and every part are whole blocks of 4 KiB, so that direct reads and writes
// go to and from the ranks' memory. The tag is over all of it, so a torn, foreign or changed file
// is known for what it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/base/secret.h"
#include "engine/scheduler/page_store.h"

namespace lockstep {

inline constexpr size_t kRecordBlockBytes = 4096;

// Whole blocks, aligned as such, one for each rank.
using RecordParts = std::span<const std::span<std::byte>>;

uint64_t record_bytes(RecordParts parts);

// Writes a record to a file that is open for writing, from its beginning. Fails with
// kMachineRefused, with the system's reason; `error_number` is that reason.
Result<void> write_record(int descriptor, const SecretKey& secret, const StoredKey& key,
                          RecordParts parts, int& error_number);

// Fills the parts with those of a record, which must be this key's. Fails with kMachineRefused: the
// file is another one, shorter, changed, or cannot be read; then the parts hold anything.
Result<void> read_record(int descriptor, const SecretKey& secret, const StoredKey& key,
                         RecordParts parts);

}  // namespace lockstep
