// The inner products of attention. With bfloat16 dot products where the CPU has them, else in
// float32; which one is chosen by the type.
#pragma once

#include "attention_state.h"

namespace tenora {

constexpr int STEP = 16;  // lines of a decode step

// What tiles multiply: bfloat16 in pairs, or float32.
template <typename T>
struct Element {
  using type = float;
  static constexpr int64_t PAIR = 1;
};

// ---------------------------------------------------------------- one query row per head

// One head's part of STEP lines, and of those that are to be fetched meanwhile.
template <typename T>
struct Lines {
  const T* const* now;
  int64_t offset;
  const T* const* ahead;
  int64_t ahead_offset;

  const T* operator[](int line) const { return now[line] + offset; }
  void fetch(int line, int64_t count) const {
    for (int64_t i = 0; i < count; i += 64 / sizeof(T)) fetch_at(line, i);
  }
  void fetch_at(int line, int64_t at) const { prefetch_far(ahead[line] + ahead_offset + at); }
};

// scores[i * stride + t] = q[i] . lines[t], for STEP lines.
template <int ROWS, typename T>
inline void score_lines(const T* const* q, const Lines<T>& lines, int64_t head_dim, float* scores,
                        int64_t stride) {
  for (int t = 0; t < STEP; ++t) {
    const T* key = lines[t];
    lines.fetch(t, head_dim);
    Lanes sums[ROWS] = {};
    for (int64_t d = 0; d < head_dim; d += LANES) {
      const int64_t count = head_dim - d;
      const Lanes k = load_up_to(key + d, count);
      for (int i = 0; i < ROWS; ++i) sums[i] += load_up_to(q[i] + d, count) * k;
    }
    for (int i = 0; i < ROWS; ++i) scores[i * stride + t] = sum(sums[i]);
  }
}

// mixed[i] += sum over STEP lines t of weights[i * stride + t] * lines[t].
template <int ROWS, typename T>
inline void mix_lines(const float* weights, int64_t stride, const Lines<T>& lines, int64_t head_dim,
                      float* mixed, int64_t pitch) {
  for (int t = 0; t < STEP; ++t) lines.fetch(t, head_dim);
  for (int64_t d = 0; d < head_dim; d += LANES) {
    Lanes sums[ROWS];
    for (int i = 0; i < ROWS; ++i) sums[i] = load(mixed + i * pitch + d);
    for (int t = 0; t < STEP; ++t) {
      const Lanes value = load_up_to(lines[t] + d, head_dim - d);
      for (int i = 0; i < ROWS; ++i) sums[i] += value * weights[i * stride + t];
    }
    for (int i = 0; i < ROWS; ++i) store(mixed + i * pitch + d, sums[i]);
  }
}

// ---------------------------------------------------------------- tiles of query rows

// c = a b, or c = c * factor + a b: ROWS rows of a, VECTORS * LANES columns. b is packed as
// [depth / PAIR, b_columns, PAIR].
template <int ROWS, int VECTORS>
inline void multiply_block(const float* a, int64_t a_stride, const float* b, int64_t b_columns,
                           int64_t depth, float* c, int64_t c_stride, const float* factor) {
  Lanes sums[ROWS][VECTORS] = {};
  if (factor)
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < VECTORS; ++j)
        sums[i][j] = load(c + i * c_stride + j * LANES) * factor[i];
  for (int64_t k = 0; k < depth; ++k) {
    Lanes columns[VECTORS];
    for (int j = 0; j < VECTORS; ++j) columns[j] = load(b + k * b_columns + j * LANES);
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < VECTORS; ++j) sums[i][j] += columns[j] * a[i * a_stride + k];
  }
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j) store(c + i * c_stride + j * LANES, sums[i][j]);
}

// Rows of scores [KEY_TILE] and what becomes of them. Scores and weights have room up to a multiple
// of four rows.
template <typename Number>
struct SoftmaxRows {
  int64_t rows;
  const int64_t* visible;  // keys that a row sees of the tile
  float scale;             // times log2 e
  const float* scores;
  Number* weights;
  float* highest;  // of all scores so far
  float* sum;      // of all weights so far
  float* factor;   // what a row's earlier weights shrink by
};

// A row's scaled scores; -inf where it may not look. Rounded, so that what is taken from them is
// the same with and without a mask.
template <bool MASKED>
inline Lanes visible_scores(const float* scores, float scale, int64_t column, int64_t visible) {
  const Lanes scaled = rounded<float>(load(scores + column) * scale);
  if (!MASKED) return scaled;
  const Bits index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const uint32_t count = std::max<int64_t>(0, visible - column);
  return index < count ? scaled : Lanes{} - __builtin_inff();
}

// The weights from the first `columns` scores; brings the rows' highest scores and sums up to
// date.
template <bool MASKED>
inline void soften(const SoftmaxRows<float>& p, int64_t columns) {
  for (int64_t row = 0; row < p.rows; ++row) {
    const float* scores = p.scores + row * KEY_TILE;
    const int64_t visible = p.visible[row];
    Lanes most = Lanes{} + p.highest[row];
    for (int64_t c = 0; c < columns; c += LANES) {
      const Lanes some = visible_scores<MASKED>(scores, p.scale, c, visible);
      most = some > most ? some : most;
    }
    const float high = tenora::highest(most);
    const float base = high == -__builtin_inff() ? 0.0f : high;
    p.factor[row] = exp2_below_one(Lanes{p.highest[row] - base})[0];
    p.highest[row] = high;
    Lanes total = {};
    for (int64_t c = 0; c < columns; c += LANES) {
      const Lanes weight =
          exp2_below_one(visible_scores<MASKED>(scores, p.scale, c, visible) - base);
      total += weight;
      store(p.weights + row * KEY_TILE + c, weight);
    }
    p.sum[row] = p.sum[row] * p.factor[row] + sum(total);
  }
}

inline void store_elements(float* to, Lanes lanes) { store(to, lanes); }

// Lines side by side: packed[d, t] of KEY_TILE columns. `count` is a multiple of two vectors.
template <typename T>
inline void pack_keys(const T* const* lines, int64_t count, int64_t offset, int64_t head_dim,
                      int64_t depth, float* packed) {
  for (int64_t t = 0; t < count; ++t) {
    const T* key = lines[t] + offset;
    for (int64_t d = 0; d < depth; d += LANES) {
      float some[LANES];
      store(some, d < head_dim ? load_up_to(key + d, head_dim - d) : Lanes{});
      for (int64_t i = 0; i < LANES; ++i) packed[(d + i) * KEY_TILE + t] = some[i];
    }
  }
}

// packed[t, d], zeros behind head_dim.
template <typename T>
inline void pack_values(const T* const* lines, int64_t count, int64_t offset, int64_t head_dim,
                        int64_t pitch, float* packed) {
  for (int64_t t = 0; t < count; ++t) {
    const T* value = lines[t] + offset;
    for (int64_t d = 0; d < pitch; d += LANES)
      store(packed + t * pitch + d,
            d < head_dim ? load_up_to(value + d, head_dim - d) : Lanes{});
  }
}

// A query row, zeros behind head_dim.
template <typename T>
inline void copy_query(const T* q, int64_t head_dim, int64_t depth, float* to) {
  for (int64_t d = 0; d < depth; d += LANES)
    store(to + d, d < head_dim ? load_up_to(q + d, head_dim - d) : Lanes{});
}

}  // namespace tenora

#ifdef TENORA_BF16_DOT
#include "attention_tiles_bf16.h"
#endif
