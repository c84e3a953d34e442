// The threads of one call: all run the same code and share out each phase's tasks among them.
//
// An op is a function of a Member: it deals its tasks and returns without waiting, so that ops
// which do not need each other's results share a phase. The caller ends a phase by `barrier`.
#pragma once

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tenora {

// What the members share.
struct Team {
  static constexpr int LANES = 8;  // lists of tasks in one phase
  alignas(64) std::atomic<int64_t> next[LANES] = {};
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<unsigned> generation{0};
};

// One thread's view of its team.
class Member {
 public:
  Member(Team& team, int index, int size) : team_(team), index_(index), size_(size) {}

  int index() const { return index_; }
  int size() const { return size_; }

  // A list of tasks, 0..tasks-1, which the members share out. All members ask for the same lists in
  // the same order.
  class Tasks {
   public:
    Tasks(std::atomic<int64_t>& next, int64_t tasks) : next_(next), tasks_(tasks) {}

    // One that no other member has taken; negative when none is left.
    int64_t take() {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      return task < tasks_ ? task : -1;
    }

   private:
    std::atomic<int64_t>& next_;
    int64_t tasks_;
  };
  Tasks share_out(int64_t tasks) { return Tasks(team_.next[lane_++], tasks); }

  // Calls `task(i)` for each i in 0..tasks-1 that no other member has taken. A task may not wait
  // for one of a higher number.
  template <typename Task>
  void deal(int64_t tasks, Task&& task) {
    Tasks list = share_out(tasks);
    for (int64_t i; (i = list.take()) >= 0;) task(i);
  }

  // Units 0..units-1 in runs, each half a member's part of what is left: a run's memory is one
  // stream, and all members end together (guided self-scheduling: Polychronopoulos and Kuck, 1987).
  class Runs {
   public:
    struct Run {
      int64_t first, end;
      bool empty() const { return first >= end; }
    };

    Runs(std::atomic<int64_t>& next, int64_t units, int members)
        : next_(next), units_(units), members_(members) {}

    // One that no other member has taken; empty when none is left.
    Run take() {
      int64_t first = next_.load(std::memory_order_relaxed);
      while (first < units_) {
        const int64_t end = first + std::max<int64_t>(1, (units_ - first) / (2 * members_));
        if (next_.compare_exchange_weak(first, end, std::memory_order_relaxed))
          return {first, end};
      }
      return {units_, units_};
    }

   private:
    std::atomic<int64_t>& next_;
    int64_t units_;
    int members_;
  };
  Runs share_out_runs(int64_t units) { return Runs(team_.next[lane_++], units, size_); }

  // Two ops that share a phase and deal one list each. Every other member begins with the second:
  // where one is bound by memory and the other by arithmetic, both are busy all the time.
  template <typename One, typename Other>
  void side_by_side(One&& one, Other&& other) {
    const int lane = lane_;
    if (index_ % 2 == 0) {
      one();
      other();
    } else {
      lane_ = lane + 1;
      other();
      lane_ = lane;
      one();
    }
    lane_ = lane + 2;
  }

  // Returns when all members have come here; what they wrote before is seen by all.
  void barrier() {
    lane_ = 0;
    const unsigned generation = team_.generation.load(std::memory_order_acquire);
    if (team_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      team_.arrived.store(0, std::memory_order_relaxed);
      for (auto& next : team_.next) next.store(0, std::memory_order_relaxed);
      team_.generation.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; team_.generation.load(std::memory_order_acquire) == generation; ++spins) {
      if (spins > 4000) sched_yield();  // who is missing may have lost its core
      else relax();
    }
  }

 private:
  Team& team_;
  int index_;
  int size_;
  int lane_ = 0;

  static void relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
};

// Runs `work(member)` on up to `threads` threads of torch's OpenMP team at once. Within a parallel
// region the caller works alone.
template <typename Work>
void run_team(int threads, Work&& work) {
  Team team;
  if (threads <= 1 || omp_in_parallel()) {
    Member alone(team, 0, 1);
    work(alone);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    Member member(team, omp_get_thread_num(), omp_get_num_threads());
    work(member);
  }
}

}  // namespace tenora
