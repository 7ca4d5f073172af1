// Zeroed memory for long streams: huge pages where the system has them, pages appear when they are touched.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#ifdef __linux__
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

namespace selfspec {

class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t size) : size_(size) {
    if (!size) return;
#ifdef __linux__
    if (size > (std::size_t{1} << 47)) throw std::bad_alloc();
    mapped_ = (size + PAGE - 1) / PAGE * PAGE + PAGE;  // room to begin at a huge page
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<std::size_t>(base_);
    data_ = reinterpret_cast<void*>((address + PAGE - 1) / PAGE * PAGE);
    if (size >= PAGE) madvise(data_, mapped_ - PAGE, MADV_HUGEPAGE);
#else
#ifdef _WIN32
    data_ = base_ = _aligned_malloc(size, 64);
#else
    data_ = base_ = std::aligned_alloc(64, (size + 63) / 64 * 64);
#endif
    if (!data_) throw std::bad_alloc();
    std::memset(data_, 0, size);
#endif
  }
  ~Memory() {
#ifdef __linux__
    if (base_) munmap(base_, mapped_);
#elif defined(_WIN32)
    _aligned_free(base_);
#else
    std::free(base_);
#endif
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  template <class T> T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }
  std::size_t size() const { return size_; }

 private:
  void swap(Memory& other) noexcept {
    std::swap(base_, other.base_), std::swap(data_, other.data_);
    std::swap(size_, other.size_), std::swap(mapped_, other.mapped_);
  }
  static constexpr std::size_t PAGE = std::size_t{1} << 21;
  void *base_ = nullptr, *data_ = nullptr;
  std::size_t size_ = 0, mapped_ = 0;
};

}  // namespace selfspec
