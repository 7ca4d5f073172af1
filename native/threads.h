// A persistent team of threads that runs one job at a time, with barriers inside of a job.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace selfspec {

// The caller is member 0. Between jobs the others spin for a moment, in case the next one comes at once, and
// then sleep; so an idle team costs nothing.
class Team {
 public:
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  int size() const { return size_; }
  // f(member) on every member; returns when all are done. One job at a time: the caller sees to that.
  void run(const std::function<void(int)>& f);
  // Wait for all members; only inside of a job.
  void barrier();

 private:
  void serve(int member);
  static void wait(std::atomic<std::uint32_t>& value, std::uint32_t old, std::chrono::microseconds spin);
  static void advance(std::atomic<std::uint32_t>& value);
  const int size_;
  alignas(64) std::atomic<std::uint32_t> job_{0};
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<int> arrived_{0};
  const std::function<void(int)>* work_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Runs the jobs of one model, one at a time, on a team of the process: of the idle ones of its size the one that worked
// last. So models that take turns (a target and its draft) share a team; with one each, the threads of the one that
// has just worked would spin where the other's should run. Jobs of several models at once have a team each. Teams of a
// size go with the last model that asks for it. After a fork the child has none of the threads, and makes new ones.
class Teams {
 public:
  explicit Teams(int size);
  ~Teams();
  Teams(const Teams&) = delete;
  int size() const { return size_; }
  void run(const std::function<void(Team&)>& f);

 private:
  struct Turn {
    const int process;
    std::mutex mutex;
  };
  Turn* turn();
  const int size_;
  const int process_;  // whose pool counts this model
  std::atomic<Turn*> turn_;
};

// Cache lines of counters from which members take pieces of work; three sets take turns, so that one is
// cleared while nobody uses it.
class Counters {
 public:
  explicit Counters(int members) : members_(members), slots_(3 * members) {}
  std::atomic<int>& at(int phase, int member) { return slots_[phase % 3 * members_ + member].value; }
  void clear(int phase) {
    for (int i = 0; i < members_; i++) at(phase, i).store(0, std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Slot { std::atomic<int> value{0}; };
  int members_;
  std::vector<Slot> slots_;
};

}  // namespace selfspec
