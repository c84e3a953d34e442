// Rows of one adapter are a segment. A segment is shrunk (h = scale * x A^T, float32) and then
// expanded (y += h B). Small segments are one task; large ones are cut into tasks by rank rows for
// the shrink and by columns for the expansion, which waits until its shrink is complete. Threads
// take tasks from one ordered list, so whatever a task waits for was taken before it by a thread
// that is at work on it. Every sum runs over its terms in one order, however the work was cut and
// whatever else is in the batch: the result has the same bits for any number of threads.

#include "sgmv.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace tenora {
namespace {

constexpr int64_t SEGMENT_ROWS = 32;  // longer runs become several segments
constexpr int64_t TASK_BYTES = 24 * 1024;

// ---------------------------------------------------------------- reading ahead

// Rank rows of one matrix, or a range of their columns: what a task reads, in the order it does.
struct Piece {
  const int64_t* granules;  // of the first rank row
  int64_t offset;           // within the granule, elements
  int64_t rows;
  int64_t length;  // elements read of each row
};

// Lines still to be asked for in one row.
struct Lines {
  const char* line;
  const char* end;
};

// Goes through the pieces of a task, AHEAD lines before the loops that read them. Rank rows lie
// far apart, so the machine's own prefetching finds no stream in them.
template <typename T>
class Ahead {
 public:
  static constexpr int AHEAD = 160;  // lines

  Ahead(const T* pool, const std::vector<Piece>& pieces) : pool_(pool), pieces_(pieces) {
    lines = row_lines();
    Steps steps(this);
    for (int i = 0; i < AHEAD; ++i) steps.step();
  }

  // A loop's own copy of where we are, so that it stays in registers; none asks for nothing.
  class Steps {
   public:
    explicit Steps(Ahead* ahead) : ahead_(ahead), now_(ahead ? ahead->lines : Lines{}) {}
    ~Steps() {
      if (ahead_) ahead_->lines = now_;
    }
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;

    void step() {
      if (!ahead_) return;
      prefetch(now_.line);
      now_.line += 64;
      if (now_.line >= now_.end) [[unlikely]]
        now_ = ahead_->next_row();
    }

   private:
    Ahead* ahead_;
    Lines now_;
  };

  Lines lines;

 private:
  const T* pool_;
  const std::vector<Piece>& pieces_;
  size_t piece_ = 0;
  int64_t row_ = 0;

  Lines row_lines() const {
    const Piece& piece = pieces_[piece_];
    const T* first = pool_ + piece.granules[row_] + piece.offset;
    return {reinterpret_cast<const char*>(first),
            reinterpret_cast<const char*>(first + piece.length)};
  }

  __attribute__((noinline)) Lines next_row() {
    if (row_ + 1 < pieces_[piece_].rows) {
      ++row_;
    } else if (piece_ + 1 < pieces_.size()) {
      ++piece_;
      row_ = 0;
    }  // at the end: the last row again
    return row_lines();
  }
};

// ---------------------------------------------------------------- inner loops

// Dot products of ROWS rows of x with RANKS rows of A.
template <int ROWS, int RANKS, typename T>
inline void dot_tile(const T* const* x, const T* const* a, Ahead<T>* ahead, int64_t n,
                     float (&out)[ROWS][RANKS]) {
  Lanes sums[ROWS][RANKS] = {};
  typename Ahead<T>::Steps steps(ahead);
  int64_t k = 0;
#ifdef TENORA_BF16_DOT
  if constexpr (sizeof(T) == 2) {
    __m512 wide[ROWS][RANKS];
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < RANKS; ++j) wide[i][j] = _mm512_setzero_ps();
    for (; k < n; k += 32) {
      const __mmask32 mask = n - k >= 32 ? 0xffffffffu : (1u << (n - k)) - 1;
      __m512bh rows[ROWS];
      for (int i = 0; i < ROWS; ++i) rows[i] = (__m512bh)_mm512_maskz_loadu_epi16(mask, x[i] + k);
      for (int j = 0; j < RANKS; ++j) {
        const __m512bh weights = (__m512bh)_mm512_maskz_loadu_epi16(mask, a[j] + k);
        steps.step();
        for (int i = 0; i < ROWS; ++i) wide[i][j] = _mm512_dpbf16_ps(wide[i][j], rows[i], weights);
      }
    }
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < RANKS; ++j) out[i][j] = sum((Lanes)wide[i][j]);
    return;
  }
#endif
  for (; k + LANES <= n; k += LANES) {
    Lanes rows[ROWS];
    for (int i = 0; i < ROWS; ++i) rows[i] = load(x[i] + k);
    for (int j = 0; j < RANKS; ++j) {
      const Lanes weights = load(a[j] + k);
      if (k % (64 / sizeof(T)) == 0) steps.step();
      for (int i = 0; i < ROWS; ++i) sums[i][j] += rows[i] * weights;
    }
  }
  if (k < n) {
    for (int j = 0; j < RANKS; ++j) {
      const Lanes weights = load_part(a[j] + k, n - k);
      for (int i = 0; i < ROWS; ++i) sums[i][j] += load_part(x[i] + k, n - k) * weights;
    }
  }
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < RANKS; ++j) out[i][j] = sum(sums[i][j]);
}

// totals[i] += sum over j of h[i][j] * b[j], over `width` columns; totals are padded to LANES.
template <int ROWS, int RANKS, typename T>
inline void add_tile(const float* const* h, const T* const* b, Ahead<T>* ahead, int64_t width,
                     float* const* totals) {
  typename Ahead<T>::Steps steps(ahead);
  Lanes factor[ROWS][RANKS];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < RANKS; ++j) factor[i][j] = Lanes{} + h[i][j];
  int64_t column = 0;
  for (; column + LANES <= width; column += LANES) {
    Lanes weights[RANKS];
    for (int j = 0; j < RANKS; ++j) {
      weights[j] = load(b[j] + column);
      if (column % (64 / sizeof(T)) == 0) steps.step();
    }
    for (int i = 0; i < ROWS; ++i) {
      Lanes total = load(totals[i] + column);
      for (int j = 0; j < RANKS; ++j) total += factor[i][j] * weights[j];
      store(totals[i] + column, total);
    }
  }
  if (column < width) {
    Lanes weights[RANKS];
    for (int j = 0; j < RANKS; ++j) weights[j] = load_part(b[j] + column, width - column);
    for (int i = 0; i < ROWS; ++i) {
      Lanes total = load(totals[i] + column);
      for (int j = 0; j < RANKS; ++j) total += factor[i][j] * weights[j];
      store(totals[i] + column, total);
    }
  }
}

// ---------------------------------------------------------------- one call

struct Segment {
  int64_t row, rows, slot;
  int64_t rank_sum;  // over the slices
  int64_t bytes;
  float* h;       // [rows, rank_sum]
  int shrinks;    // tasks its expansion waits for, 0: the segment is one task
};

enum class Kind { Shrink, Whole, Expand };

struct Task {
  Kind kind;
  int segment;
  int slice;
  int64_t h_column;  // of the slice's first rank row
  int64_t first, last;  // rank rows to shrink, columns to expand
};

template <typename T>
class Call {
 public:
  Call(const SgmvArguments& arguments, int threads) : p_(arguments), threads_(threads) {
    find_segments();
    cut_tasks();
  }

  bool empty() const { return tasks_.empty(); }
  int useful_threads() const { return std::min<int>(threads_, tasks_.size()); }

  void work() {
    for (size_t i; (i = next_.fetch_add(1)) < tasks_.size();) {
      const Task& task = tasks_[i];
      const Segment& segment = segments_[task.segment];
      if (task.kind == Kind::Whole) {
        whole(segment);
      } else if (task.kind == Kind::Shrink) {
        part(segment, task);
        done_[task.segment].fetch_add(1, std::memory_order_release);
      } else {
        wait_for(task.segment);
        part(segment, task);
      }
    }
  }

 private:
  const SgmvArguments& p_;
  int threads_;
  std::vector<Segment> segments_;
  std::vector<Task> tasks_;
  std::unique_ptr<std::atomic<int>[]> done_;
  std::atomic<size_t> next_{0};
  std::unique_ptr<float[]> h_;
  int64_t total_bytes_ = 0;

  int64_t entry(const Segment& segment, int slice) const {
    return (segment.slot * p_.layers + p_.layer) * p_.modules + p_.slices[slice].module;
  }
  const T* granule(const Segment& segment, int64_t rank_row) const {
    const int64_t at = (segment.slot * p_.layers + p_.layer) * p_.max_rank + rank_row;
    return static_cast<const T*>(p_.pool) + p_.granule_offset[at];
  }
  const T* x_row(int64_t row) const { return static_cast<const T*>(p_.x) + row * p_.x_stride; }

  void find_segments() {
    int64_t h_floats = 0;
    for (int64_t row = 0; row < p_.num_rows;) {
      const int32_t slot = p_.row_slot[row];
      int64_t end = row + 1;
      while (end < p_.num_rows && p_.row_slot[end] == slot) ++end;
      if (slot >= 0 && end - row <= p_.longest_run) {
        for (int64_t part = row; part < end; part += SEGMENT_ROWS) {
          Segment segment{part, std::min(SEGMENT_ROWS, end - part), slot, 0, 0, nullptr, 0};
          for (size_t i = 0; i < p_.slices.size(); ++i) {
            const int64_t rank = p_.rank[entry(segment, i)];
            segment.rank_sum += rank;
            segment.bytes += rank * (p_.in_features + p_.slices[i].width) * sizeof(T);
          }
          if (segment.rank_sum == 0) continue;
          h_floats += segment.rows * segment.rank_sum;
          total_bytes_ += segment.bytes;
          segments_.push_back(segment);
        }
      }
      row = end;
    }
    h_.reset(new float[h_floats]);
    float* h = h_.get();
    for (Segment& segment : segments_) {
      segment.h = h;
      h += segment.rows * segment.rank_sum;
    }
  }

  void cut_tasks() {
    const int64_t target = std::max(TASK_BYTES, total_bytes_ / (threads_ * 4));
    std::vector<Task> expands;
    std::vector<Task> wholes;
    for (size_t s = 0; s < segments_.size(); ++s) {
      Segment& segment = segments_[s];
      if (threads_ == 1 || segment.bytes <= target) {
        wholes.push_back({Kind::Whole, static_cast<int>(s), 0, 0, 0, 0});
        continue;
      }
      int64_t h_column = 0;
      for (size_t i = 0; i < p_.slices.size(); ++i) {
        const int64_t rank = p_.rank[entry(segment, i)];
        if (rank == 0) continue;
        const int64_t row_bytes = p_.in_features * sizeof(T);
        const int64_t ranks = std::max<int64_t>(1, target / row_bytes / 8) * 8;
        for (int64_t r = 0; r < rank; r += ranks, ++segment.shrinks)
          tasks_.push_back({Kind::Shrink, static_cast<int>(s), static_cast<int>(i), h_column, r,
                            std::min(rank, r + ranks)});
        const int64_t width = p_.slices[i].width;
        const int64_t columns =
            std::max<int64_t>(2, target / (rank * int64_t(sizeof(T))) / 128) * 128;
        for (int64_t c = 0; c < width; c += columns)
          expands.push_back({Kind::Expand, static_cast<int>(s), static_cast<int>(i), h_column, c,
                             std::min(width, c + columns)});
        h_column += rank;
      }
    }
    std::stable_sort(wholes.begin(), wholes.end(), [this](const Task& one, const Task& other) {
      return segments_[one.segment].bytes > segments_[other.segment].bytes;
    });
    tasks_.insert(tasks_.end(), wholes.begin(), wholes.end());
    tasks_.insert(tasks_.end(), expands.begin(), expands.end());
    if (!expands.empty()) {
      done_.reset(new std::atomic<int>[segments_.size()]);
      for (size_t s = 0; s < segments_.size(); ++s) done_[s] = 0;
    }
  }

  void wait_for(int segment) const {
    for (int spins = 0; done_[segment].load(std::memory_order_acquire) <
                        segments_[segment].shrinks;
         ++spins) {
      if (spins > 2000) sched_yield();  // the thread we wait for may have lost its core
    }
  }

  Piece piece(const Segment& segment, int slice, Kind kind, int64_t first, int64_t last) const {
    const int64_t at = (segment.slot * p_.layers + p_.layer) * p_.max_rank;
    const int64_t* granules = p_.granule_offset + at;
    const int64_t e = entry(segment, slice);
    if (kind == Kind::Shrink)
      return {granules + first, p_.a_offset[e], last - first, p_.in_features};
    return {granules, p_.b_offset[e] + first, p_.rank[e], last - first};
  }

  void part(const Segment& segment, const Task& task) {
    const std::vector<Piece> pieces = {
        piece(segment, task.slice, task.kind, task.first, task.last)};
    Ahead<T> ahead(static_cast<const T*>(p_.pool), pieces);
    if (task.kind == Kind::Shrink)
      shrink(segment, task.slice, task.h_column, task.first, task.last, ahead);
    else
      expand(segment, task.slice, task.h_column, task.first, task.last, ahead);
  }

  void whole(const Segment& segment) {
    std::vector<Piece> pieces;
    for (const Kind kind : {Kind::Shrink, Kind::Expand})
      for (size_t i = 0; i < p_.slices.size(); ++i)
        if (const int64_t rank = p_.rank[entry(segment, i)])
          pieces.push_back(
              piece(segment, i, kind, 0, kind == Kind::Shrink ? rank : p_.slices[i].width));
    Ahead<T> ahead(static_cast<const T*>(p_.pool), pieces);
    int64_t h_column = 0;
    for (size_t i = 0; i < p_.slices.size(); ++i) {
      const int64_t rank = p_.rank[entry(segment, i)];
      shrink(segment, i, h_column, 0, rank, ahead);
      h_column += rank;
    }
    h_column = 0;
    for (size_t i = 0; i < p_.slices.size(); ++i) {
      const int64_t rank = p_.rank[entry(segment, i)];
      if (rank) expand(segment, i, h_column, 0, p_.slices[i].width, ahead);
      h_column += rank;
    }
  }

  void shrink(const Segment& segment, int slice, int64_t h_column, int64_t first, int64_t last,
              Ahead<T>& ahead) {
    const int64_t offset = p_.a_offset[entry(segment, slice)];
    int64_t r = first;
    if (segment.rows == 1)
      for (; r + 8 <= last; r += 8) shrink_ranks<8>(segment, slice, offset, h_column, r, ahead);
    for (; r + 4 <= last; r += 4) shrink_ranks<4>(segment, slice, offset, h_column, r, ahead);
    for (; r < last; ++r) shrink_ranks<1>(segment, slice, offset, h_column, r, ahead);
  }

  template <int RANKS>
  void shrink_ranks(const Segment& segment, int slice, int64_t offset, int64_t h_column, int64_t r,
                    Ahead<T>& lines) {
    const T* a[RANKS];
    for (int j = 0; j < RANKS; ++j) a[j] = granule(segment, r + j) + offset;
    const float scale = p_.scale[entry(segment, slice)];
    float* h = segment.h + h_column + r;
    int64_t row = 0;
    Ahead<T>* ahead = &lines;  // only the first rows read from memory
    if constexpr (RANKS <= 4) {
      for (; row + 4 <= segment.rows; row += 4, ahead = nullptr)
        shrink_rows<4, RANKS>(segment, a, ahead, row, scale, h);
    }
    for (; row < segment.rows; ++row, ahead = nullptr)
      shrink_rows<1, RANKS>(segment, a, ahead, row, scale, h);
  }

  template <int ROWS, int RANKS>
  void shrink_rows(const Segment& segment, const T* const* a, Ahead<T>* ahead, int64_t row,
                   float scale, float* h) {
    const T* x[ROWS];
    for (int i = 0; i < ROWS; ++i) x[i] = x_row(segment.row + row + i);
    float out[ROWS][RANKS];
    dot_tile<ROWS, RANKS>(x, a, ahead, p_.in_features, out);
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < RANKS; ++j) h[(row + i) * segment.rank_sum + j] = scale * out[i][j];
  }

  void expand(const Segment& segment, int slice, int64_t h_column, int64_t first, int64_t last,
              Ahead<T>& ahead) {
    const int64_t rank = p_.rank[entry(segment, slice)];
    const int64_t offset = p_.b_offset[entry(segment, slice)] + first;
    const int64_t width = last - first;
    const int64_t padded = (width + LANES - 1) / LANES * LANES;
    thread_local std::vector<float> totals;
    totals.assign(segment.rows * padded, 0.0f);
    int64_t r = 0;
    for (; r + 4 <= rank; r += 4)
      expand_ranks<4>(segment, offset, h_column, r, width, padded, totals.data(), ahead);
    for (; r < rank; ++r)
      expand_ranks<1>(segment, offset, h_column, r, width, padded, totals.data(), ahead);
    for (int64_t row = 0; row < segment.rows; ++row) {
      T* y = static_cast<T*>(p_.y) + (segment.row + row) * p_.y_stride +
             p_.slices[slice].column + first;
      const float* total = totals.data() + row * padded;
      int64_t c = 0;
      for (; c + LANES <= width; c += LANES) store(y + c, load(y + c) + load(total + c));
      if (c < width) store_part(y + c, load_part(y + c, width - c) + load(total + c), width - c);
    }
  }

  template <int RANKS>
  void expand_ranks(const Segment& segment, int64_t offset, int64_t h_column, int64_t r,
                    int64_t width, int64_t padded, float* totals, Ahead<T>& lines) {
    const T* b[RANKS];
    for (int j = 0; j < RANKS; ++j) b[j] = granule(segment, r + j) + offset;
    const float* h = segment.h + h_column + r;
    Ahead<T>* ahead = &lines;
    int64_t row = 0;
    for (; row + 4 <= segment.rows; row += 4, ahead = nullptr)
      expand_rows<4, RANKS>(segment, b, ahead, row, h, width, padded, totals);
    for (; row < segment.rows; ++row, ahead = nullptr)
      expand_rows<1, RANKS>(segment, b, ahead, row, h, width, padded, totals);
  }

  template <int ROWS, int RANKS>
  void expand_rows(const Segment& segment, const T* const* b, Ahead<T>* ahead, int64_t row,
                   const float* h, int64_t width, int64_t padded, float* totals) {
    const float* factors[ROWS];
    float* into[ROWS];
    for (int i = 0; i < ROWS; ++i) {
      factors[i] = h + (row + i) * segment.rank_sum;
      into[i] = totals + (row + i) * padded;
    }
    add_tile<ROWS, RANKS>(factors, b, ahead, width, into);
  }
};

}  // namespace

template <typename T>
void sgmv(const SgmvArguments& arguments, int threads, const RunOnThreads& run) {
  Call<T> call(arguments, threads);
  if (call.empty()) return;
  run(call.useful_threads(), [&call] { call.work(); });
}

template void sgmv<float>(const SgmvArguments&, int, const RunOnThreads&);
template void sgmv<bf16>(const SgmvArguments&, int, const RunOnThreads&);

}  // namespace tenora
