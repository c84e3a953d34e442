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

// ---------------------------------------------------------------- tiles of query rows

// Of ROWS rows of a and VECTORS * LANES columns of b, which is packed as
// [depth / PAIR, b_columns, PAIR].
template <int ROWS, int VECTORS>
inline void add_line(const float* a, int64_t a_stride, const float* b,
                     Lanes (&sums)[ROWS][VECTORS]) {
  Lanes columns[VECTORS];
  for (int j = 0; j < VECTORS; ++j) columns[j] = load(b + j * LANES);
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j) sums[i][j] += columns[j] * a[i * a_stride];
}

// c = a b, each sum as `score_lines` makes it.
template <int ROWS, int VECTORS>
inline void score_block(const float* a, int64_t a_stride, const float* b, int64_t b_columns,
                        int64_t depth, float* c, int64_t c_stride) {
  Lanes sums[ROWS][VECTORS] = {};
  for (int64_t k = 0; k < depth; ++k) add_line(a + k, a_stride, b + k * b_columns, sums);
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j) store(c + i * c_stride + j * LANES, sums[i][j]);
}

// c = c * factor + a b, each sum as `mix_lines` makes it.
template <int ROWS, int VECTORS>
inline void mix_block(const float* a, int64_t a_stride, const float* b, int64_t b_columns,
                      int64_t depth, float* c, int64_t c_stride, const float* factor) {
  Lanes sums[ROWS][VECTORS];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j)
      sums[i][j] = load(c + i * c_stride + j * LANES) * factor[i];
  for (int64_t k = 0; k < depth; ++k) add_line(a + k, a_stride, b + k * b_columns, sums);
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

inline void store_elements(float* to, Lanes lanes) { store(to, lanes); }

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

#ifdef TENORA_AVX512
#include "attention_avx512.h"
#else
#include "attention_portable.h"
#endif
#ifdef TENORA_BF16_DOT
#include "attention_tiles_bf16.h"
#endif
