// The system calls that memory is taken with, one method each: a test overrides some of them to
// refuse, as a kernel or a container may. Each returns and sets errno as the system's does.
#pragma once

#include <cstddef>
#include <filesystem>

namespace lockstep {

class MemoryCalls {
 public:
  MemoryCalls() = default;
  MemoryCalls(const MemoryCalls&) = delete;
  MemoryCalls& operator=(const MemoryCalls&) = delete;
  virtual ~MemoryCalls() = default;

  // Calls of populate() and populate_read() may come from several threads at once.
  virtual void* map(void* address, size_t bytes, int protection, int flags, int descriptor);
  virtual int unmap(void* address, size_t bytes);
  virtual int protect(void* address, size_t bytes, int protection);
  virtual int advise(void* address, size_t bytes, int advice);
  virtual int populate(void* address, size_t bytes);       // MADV_POPULATE_WRITE
  virtual int populate_read(void* address, size_t bytes);  // MADV_POPULATE_READ
  virtual int lock(void* address, size_t bytes);           // mlock
  virtual long bind(void* address, size_t bytes, int node);
  virtual int make_memfd(const char* name, unsigned flags);
  virtual int resize(int descriptor, size_t bytes);
  virtual int close(int descriptor);
  // Writes the node of each page, or a negative error number, to `status`.
  virtual long query_pages(void** pages, size_t count, int* status);

  // The folder of proc and sys.
  virtual std::filesystem::path root() const;

  // The system's own; has no state.
  static MemoryCalls& system();
};

}  // namespace lockstep
