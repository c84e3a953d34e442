// Compares builds of the kernels, all in this process and in turn; see README.md.

#include <dlfcn.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cases.h"
#include "driver.h"

namespace {

constexpr int WARM_STEPS = 3;

struct Build {
  std::string name;
  bool int8;  // the weights
  decltype(&tenora_make_model) make_model;
  decltype(&tenora_free_model) free_model;
  decltype(&tenora_make_case) make_case;
  decltype(&tenora_free_case) free_case;
  decltype(&tenora_run_step) run_step;
  decltype(&tenora_hash_step) hash_step;
  decltype(&tenora_adapter_bytes) adapter_bytes;
};

// FILE.so, or FILE.so:int8 for weights of 8 bits.
Build load(const std::string& wanted) {
  const std::string path = wanted.substr(0, wanted.find(':'));
  if (path != wanted && wanted != path + ":int8")
    throw std::runtime_error(wanted + " is neither FILE.so nor FILE.so:int8");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!library) throw std::runtime_error(dlerror());
  const auto find = [&](auto*& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) throw std::runtime_error(path + " lacks " + name);
  };
  Build build;
  const size_t from = path.rfind('/') + 1;
  build.name = path.substr(from, path.rfind(".so") - from) + wanted.substr(path.size());
  build.int8 = path != wanted;
  find(build.make_model, "tenora_make_model");
  find(build.free_model, "tenora_free_model");
  find(build.make_case, "tenora_make_case");
  find(build.free_case, "tenora_free_case");
  find(build.run_step, "tenora_run_step");
  find(build.hash_step, "tenora_hash_step");
  find(build.adapter_bytes, "tenora_adapter_bytes");
  return build;
}

// One build's model and arena for one case.
class Bench {
 public:
  Bench(const Build& build, const NamedCase& wanted, int threads) : build_(build) {
    const StepCase step = wanted.step();
    if (!step.sgmv_alone) model_ = build_.make_model(step.layers, build_.int8);
    made_ = build_.make_case(model_, &step, threads);
  }
  Bench(const Bench&) = delete;
  ~Bench() {
    build_.free_case(made_);
    if (model_) build_.free_model(model_);
  }

  const std::string& name() const { return build_.name; }
  double run(bool with_adapters) const { return build_.run_step(made_, with_adapters); }
  StepHashes hash() const { return build_.hash_step(made_); }
  double adapter_bytes() const { return static_cast<double>(build_.adapter_bytes(made_)); }

 private:
  const Build& build_;
  void* model_ = nullptr;
  void* made_;
};

// How fast two threads read memory that no cache holds.
class ReadRate {
 public:
  ReadRate() : memory_(std::aligned_alloc(size_t{1} << 21, BYTES)) {
    if (!memory_) throw std::bad_alloc();
    madvise(memory_, BYTES, MADV_HUGEPAGE);
    std::memset(memory_, 1, BYTES);
  }
  ReadRate(const ReadRate&) = delete;
  ~ReadRate() { std::free(memory_); }

  double bytes_per_s() {
    const auto start = std::chrono::steady_clock::now();
    int64_t total = 0;
#pragma omp parallel for num_threads(2) reduction(+ : total)
    for (int64_t piece = 0; piece < PIECES; ++piece) total += sum(piece);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    total_ = total;
    return BYTES / taken.count();
  }

 private:
  typedef int64_t Eight __attribute__((vector_size(64)));
  static constexpr int64_t BYTES = int64_t{1} << 28, PIECES = 64;
  static constexpr int64_t PIECE = BYTES / PIECES / sizeof(Eight), STREAMS = 4;
  void* memory_;
  volatile int64_t total_ = 0;  // so that the sums are made

  int64_t sum(int64_t piece) const {
    const Eight* from = static_cast<const Eight*>(memory_) + piece * PIECE;
    Eight sums[STREAMS] = {};
    for (int64_t i = 0; i < PIECE; i += STREAMS)
      for (int64_t s = 0; s < STREAMS; ++s) sums[s] += from[i + s];
    const Eight all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    int64_t total = 0;
    for (int lane = 0; lane < 8; ++lane) total += all[lane];
    return total;
  }
};

// How long a cache line takes from one thread to the other. Some 40 ns where their cores share a
// cache, several times that where they do not; a host moves a guest's processors between the two,
// and steps that hand much over differ by a third.
class Handover {
 public:
  double ns() {
    constexpr int TURNS = 2000;
    turn_.store(0);
    double taken = 0;
#pragma omp parallel num_threads(2)
    {
      const int me = omp_get_thread_num(), members = omp_get_num_threads();  // one, if no more may
      const auto start = std::chrono::steady_clock::now();
      for (int i = me; i < TURNS; i += members) {
        while (turn_.load(std::memory_order_acquire) != i) continue;
        turn_.store(i + 1, std::memory_order_release);
      }
      const std::chrono::duration<double, std::nano> all = std::chrono::steady_clock::now() - start;
      if (me == 0) taken = all.count();
    }
    return taken / TURNS;
  }
  static constexpr double NEAR_NS = 80;

 private:
  alignas(128) std::atomic<int> turn_{0};
};

// This process's memory, and what of it is in pages of 2 MB, as the system tells it.
struct Memory {
  double all_mb = 0, huge_mb = 0;

  Memory() {
    std::ifstream rollup("/proc/self/smaps_rollup");
    for (std::string line; std::getline(rollup, line);) {
      double kb;
      if (std::sscanf(line.c_str(), "Rss: %lf", &kb) == 1) all_mb = kb / 1024;
      if (std::sscanf(line.c_str(), "AnonHugePages: %lf", &kb) == 1) huge_mb = kb / 1024;
    }
  }
};

// What a build took, one entry a round.
struct Times {
  std::vector<double> base, with;

  Times of(const std::vector<int>& rounds) const {
    Times some;
    for (const int round : rounds)
      some.base.push_back(base[round]), some.with.push_back(with[round]);
    return some;
  }
  std::vector<double> extra() const {
    std::vector<double> both(base.size());
    for (size_t i = 0; i < base.size(); ++i) both[i] = with[i] - base[i];
    return both;
  }
};

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const double place = part * (values.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - below) * (values[above] - values[below]);
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> found(of.size());
  for (size_t i = 0; i < of.size(); ++i) found[i] = of[i] / to[i];
  return found;
}

void print_times(const std::vector<std::unique_ptr<Bench>>& benches,
                 const std::vector<Times>& times, const std::vector<double>& rates,
                 bool has_base) {
  std::printf("%-12s %8s %8s %8s  %17s | to the first: %5s %6s  %6s %15s | %6s %6s %6s\n",
              "build", "base ms", "with ms", "extra ms", "25% to 75%", "base", "with", "extra",
              "25% to 75%", "GB/s", "x read", "% read");
  const std::vector<double> first_extra = times[0].extra();
  for (size_t b = 0; b < benches.size(); ++b) {
    const std::vector<double> extra = times[b].extra();
    const double bytes = benches[b]->adapter_bytes();
    std::vector<double> reads(rates.size());
    for (size_t i = 0; i < rates.size(); ++i) reads[i] = bytes / rates[i];
    const std::vector<double> extra_ratio = ratios(extra, first_extra);
    std::printf("%-12s %8.3f %8.3f %8.3f  %7.3f to %6.3f", benches[b]->name().c_str(),
                1e3 * median(times[b].base), 1e3 * median(times[b].with), 1e3 * median(extra),
                1e3 * quantile(extra, 0.25), 1e3 * quantile(extra, 0.75));
    std::printf(" |               %5.3f %6.3f  %6.3f  %5.3f to %5.3f",
                has_base ? median(ratios(times[b].base, times[0].base)) : 1.0,
                median(ratios(times[b].with, times[0].with)), median(extra_ratio),
                quantile(extra_ratio, 0.25), quantile(extra_ratio, 0.75));
    std::printf(" | %6.2f %6.2f %6.0f\n", bytes / median(extra) / 1e9,
                median(ratios(extra, reads)), 100 * median(ratios(reads, extra)));
  }
}

// A case's rounds, all builds in each.
struct Rounds {
  std::vector<Times> times;  // of each build
  std::vector<double> rates, handover_ns;

  // Those that began and ended with the cores near each other, or not.
  std::vector<int> placed(bool near_before, bool near_after) const {
    std::vector<int> found;
    for (size_t i = 0; i < rates.size(); ++i)
      if ((handover_ns[i] < Handover::NEAR_NS) == near_before &&
          (handover_ns[i + 1] < Handover::NEAR_NS) == near_after)
        found.push_back(static_cast<int>(i));
    return found;
  }
};

Rounds run_rounds(const std::vector<std::unique_ptr<Bench>>& benches, int rounds, int repeat) {
  for (const auto& bench : benches)
    for (int i = 0; i < WARM_STEPS; ++i) bench->run(false), bench->run(true);
  ReadRate read;
  Handover handover;
  Rounds made;
  made.times.resize(benches.size());
  made.handover_ns.push_back(handover.ns());
  for (int round = 0; round < rounds; ++round) {
    made.rates.push_back(read.bytes_per_s());
    for (size_t i = 0; i < benches.size(); ++i) {
      const size_t b = (round + i) % benches.size();  // none is always the first
      double base = 0, with = 0;
      for (int step = 0; step < repeat; ++step) {
        base += benches[b]->run(false);
        with += benches[b]->run(true);
      }
      made.times[b].base.push_back(base / repeat);
      made.times[b].with.push_back(with / repeat);
    }
    made.handover_ns.push_back(handover.ns());
  }
  return made;
}

// The table of the rounds with the cores so placed, unless there are none.
void print_placed(const std::vector<std::unique_ptr<Bench>>& benches, const Rounds& made,
                  bool near_before, bool near_after, bool has_base) {
  const std::vector<int> placed = made.placed(near_before, near_after);
  if (placed.empty()) return;
  std::vector<double> rates, ns;
  for (const int round : placed)
    rates.push_back(made.rates[round]), ns.push_back(made.handover_ns[round]);
  std::vector<Times> times;
  for (const Times& all : made.times) times.push_back(all.of(placed));
  std::printf("cores %s to %s, %zu rounds: a line takes %.0f ns; read %.1f GB/s (%.1f to %.1f)\n",
              near_before ? "near" : "far", near_after ? "near" : "far", placed.size(), median(ns),
              median(rates) / 1e9, quantile(rates, 0.25) / 1e9, quantile(rates, 0.75) / 1e9);
  print_times(benches, times, rates, has_base);
}

void compare(const std::vector<Build>& builds, const NamedCase& wanted, int rounds, int repeat,
             int threads) {
  std::vector<std::unique_ptr<Bench>> benches;
  for (const Build& build : builds)
    benches.push_back(std::make_unique<Bench>(build, wanted, threads));
  const Rounds made = run_rounds(benches, rounds, repeat);
  const Memory memory;
  std::printf("%s: %.1f MB of adapters, %d threads, %d rounds of %d; ", wanted.name.c_str(),
              benches[0]->adapter_bytes() / 1e6, threads, rounds, repeat);
  std::printf("%.0f of %.0f MB in huge pages\n", memory.huge_mb, memory.all_mb);
  for (const bool before : {true, false})
    for (const bool after : {true, false})
      print_placed(benches, made, before, after, !wanted.sgmv_alone);
}

// Whether the builds agree to the bit. One arena at a time.
bool check(const std::vector<Build>& builds, const NamedCase& wanted, int threads) {
  bool agree = true;
  StepHashes first{};
  for (const Build& build : builds) {
    const StepHashes found = Bench(build, wanted, threads).hash();
    if (&build == &builds[0]) first = found;
    const bool same = std::memcmp(&found, &first, sizeof(found)) == 0;
    std::printf("%-8s %-12s base %016lx  with %016lx  tokens %016lx%s\n", wanted.name.c_str(),
                build.name.c_str(), found.base_logits, found.logits, found.tokens,
                same ? "" : "  DIFFERS");
    agree &= same;
  }
  return agree;
}

std::vector<NamedCase> cases_named(const std::string& names) {
  std::vector<NamedCase> found;
  for (const NamedCase& one : all_cases())
    if (names == "all" || ("," + names + ",").find("," + one.name + ",") != std::string::npos)
      found.push_back(one);
  if (found.empty()) throw std::runtime_error("no case is called " + names);
  return found;
}

int run(int argc, char** argv) {
  const bool checking = argc > 1 && std::string(argv[1]) == "--check";
  constexpr int FIRST_BUILD = 4;
  if (argc <= FIRST_BUILD) {
    std::fprintf(stderr,
                 "compare CASES ROUNDS THREADS lib1.so lib2.so ...\n"
                 "compare --check CASES THREADS lib1.so lib2.so ...\n");
    return 2;
  }
  std::vector<Build> builds;
  for (int i = FIRST_BUILD; i < argc; ++i) builds.push_back(load(argv[i]));
  const char* repeat = std::getenv("REPEAT");
  const int threads = std::atoi(argv[3]);
  bool agree = true;
  for (const NamedCase& wanted : cases_named(argv[checking ? 2 : 1]))
    if (checking)
      agree &= check(builds, wanted, threads);
    else
      compare(builds, wanted, std::atoi(argv[2]), repeat ? std::atoi(repeat) : 3, threads);
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "compare: %s\n", error.what());
    return 2;
  }
}
