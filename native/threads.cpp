#include "threads.h"

#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace selfspec {
namespace {

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Longer than the others need at a barrier; longer than sampling takes between two passes.
constexpr std::chrono::microseconds AT_BARRIER{50}, BETWEEN_JOBS{1000};

}  // namespace

Team::Team(int size) : size_(size) {
  for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { serve(i); });
}

Team::~Team() {
  stop_ = true;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Team::wait(std::atomic<std::uint32_t>& value, std::uint32_t old, std::chrono::microseconds spin) {
  const auto end = std::chrono::steady_clock::now() + spin;
  do {
    for (int i = 0; i < 64; i++) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

void Team::serve(int member) {
  for (std::uint32_t seen = 0;; seen++) {
    wait(job_, seen, BETWEEN_JOBS);
    if (stop_) return;
    (*work_)(member);
    barrier();
  }
}

void Team::run(const std::function<void(int)>& f) {
  work_ = &f;
  job_.fetch_add(1, std::memory_order_release);
  if (size_ > 1) job_.notify_all();
  f(0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const std::uint32_t now = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(now + 1, std::memory_order_release);
    generation_.notify_all();
  } else {
    wait(generation_, now, AT_BARRIER);
  }
}

Teams::Held::Held(int size) : process(getpid()), team(std::make_unique<Team>(size)) {}

Teams::~Teams() {
  Held* held = current_.load();
  if (held->process == getpid()) delete held;  // else its threads are the parent's
}

Teams::Held* Teams::held() {
  Held* held = current_.load();
  if (held->process == getpid()) return held;
  Held* fresh = new Held(size_);  // the old one is left as it is: its mutex may be held for ever
  if (current_.compare_exchange_strong(held, fresh)) return fresh;
  delete fresh;  // another thread of this process was faster
  return held;
}

void Teams::run(const std::function<void(Team&)>& f) {
  Held* own = held();
  const std::lock_guard<std::mutex> lock(own->turn);
  f(*own->team);
}

}  // namespace selfspec
