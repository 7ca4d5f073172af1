#include "threads.h"

#include <map>

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
  advance(job_);
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

// notify_all wakes nobody if it sees nobody asleep. It must not look before the new value can be seen: a member that
// falls asleep just then would sleep for ever. Releasing alone allows that order, even on x86.
void Team::advance(std::atomic<std::uint32_t>& value) {
  value.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  value.notify_all();
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
  if (size_ > 1) advance(job_);
  f(0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const std::uint32_t now = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    advance(generation_);
  } else {
    wait(generation_, now, AT_BARRIER);
  }
}

namespace {

// The idle teams of this process, and how many models ask for each size.
struct Pool {
  const int process = getpid();
  std::mutex mutex;
  std::vector<std::unique_ptr<Team>> idle;  // the one that worked last at the end
  std::map<int, int> models;

  std::unique_ptr<Team> take(int size) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (std::size_t i = idle.size(); i-- > 0;) {
        if (idle[i]->size() != size) continue;
        std::unique_ptr<Team> found = std::move(idle[i]);
        idle.erase(idle.begin() + static_cast<std::ptrdiff_t>(i));
        return found;
      }
    }
    return std::make_unique<Team>(size);
  }
  void give(std::unique_ptr<Team> team) {
    const std::lock_guard<std::mutex> lock(mutex);
    idle.push_back(std::move(team));
  }
  void leave(int size) {
    std::vector<std::unique_ptr<Team>> gone;  // joined without the lock
    const std::lock_guard<std::mutex> lock(mutex);
    if (--models[size] > 0) return;
    for (auto& team : idle) {
      if (team->size() == size) gone.push_back(std::move(team));
    }
    std::erase(idle, nullptr);
  }
};

// That of this process: a child of a fork gets a new one, since the mutex of its parent's may be held for ever.
// It is never destroyed: threads may still run when a process ends.
Pool* pool() {
  static std::atomic<Pool*> current{new Pool};
  Pool* found = current.load();
  if (found->process == getpid()) return found;
  Pool* fresh = new Pool;
  if (current.compare_exchange_strong(found, fresh)) return fresh;
  delete fresh;  // another thread of this process was faster
  return found;
}

// Gives a team back whatever happens in its job.
struct Lent {
  Pool* pool;
  std::unique_ptr<Team> team;
  ~Lent() { pool->give(std::move(team)); }
};

}  // namespace

Teams::Teams(int size) : size_(size), process_(getpid()), turn_(new Turn{process_, {}}) {
  Pool* own = pool();
  const std::lock_guard<std::mutex> lock(own->mutex);
  own->models[size]++;
}

Teams::~Teams() {
  if (process_ == getpid()) pool()->leave(size_);  // else the threads, and the count, are the parent's
  Turn* last = turn_.load();
  if (last->process == getpid()) delete last;
}

Teams::Turn* Teams::turn() {
  Turn* found = turn_.load();
  if (found->process == getpid()) return found;
  Turn* fresh = new Turn{getpid(), {}};  // the old one is left as it is: its mutex may be held for ever
  if (turn_.compare_exchange_strong(found, fresh)) return fresh;
  delete fresh;  // another thread of this process was faster
  return found;
}

void Teams::run(const std::function<void(Team&)>& f) {
  const std::lock_guard<std::mutex> lock(turn()->mutex);
  Pool* own = pool();
  const Lent lent{own, own->take(size_)};
  f(*lent.team);
}

}  // namespace selfspec
