// The inner loops of sgmv's expansion, over blocks of RANKS rank rows as in sgmv_tiles.h. One
// `Step` multiplies some rank rows with some columns: one with 16, or with the bfloat16 instruction
// two with 32, whose two products it adds at once. A column's sum runs over the rank rows in order.
#pragma once

#include <algorithm>

#include "sgmv_tiles.h"

namespace tenora {

constexpr int STRIP = 64;  // columns of a tile, whose sums are kept in registers

// For y of any type.
template <typename T>
struct Step {
  using Factor = float;
  using Weights = Lanes;
  static constexpr int ROWS = 1, COLUMNS = LANES, VECTORS = 1;

  static void make_factors(const float* h, int64_t count, Factor* factors) {
    std::copy_n(h, count, factors);
  }

  // The weights of the next `count` columns, zeros behind them.
  template <typename W>
  static void read(const W* const* rows, int64_t column, int64_t count, Weights (&weights)[1]) {
    weights[0] = load_up_to(rows[0] + column, count);
  }

  static Lanes add(Lanes sums, Factor factor, Weights weights) { return sums + factor * weights; }

  static void add_to(T* y, const Lanes* sums, int64_t count) {
    store_up_to(y, load_up_to(y, count) + sums[0], count);
  }
};

#ifdef TENORA_BF16_DOT
// Columns go in fours, one four to the first vector and the next to the second: so the two rows are
// shuffled together, and so y is taken apart. h is rounded to bfloat16.
template <>
struct Step<bf16> {
  using Factor = uint32_t;  // of both rows
  using Weights = __m512i;
  static constexpr int ROWS = 2, COLUMNS = 2 * LANES, VECTORS = 2;

  static void make_factors(const float* h, int64_t count, Factor* factors) {
    for (int64_t i = 0; i < count; i += RANKS) {
      const __m128i narrow = (__m128i)_mm256_cvtneps_pbh(_mm256_loadu_ps(h + i));
      _mm_storeu_si128((__m128i*)(factors + i / ROWS), narrow);
    }
  }

  template <typename W>
  static void read(const W* const* rows, int64_t column, int64_t count, Weights (&weights)[2]) {
    constexpr bf16* KIND = nullptr;
    __m512i both[2];
    for (int i = 0; i < 2; ++i)
      both[i] = (__m512i)(count >= COLUMNS ? terms(KIND, rows[i] + column)
                                           : terms_part(KIND, rows[i] + column, count));
    weights[0] = _mm512_unpacklo_epi16(both[0], both[1]);
    weights[1] = _mm512_unpackhi_epi16(both[0], both[1]);
  }

  static Lanes add(Lanes sums, Factor factor, Weights weights) {
    return add_products(sums, (__m512bh)_mm512_set1_epi32(factor), (__m512bh)weights);
  }

  static void add_to(bf16* y, const Lanes* sums, int64_t count) {
    const __mmask32 mask = count >= COLUMNS ? 0xffffffffu : (1u << count) - 1;
    const __m512i before = _mm512_maskz_loadu_epi16(mask, y), zeros = _mm512_setzero_si512();
    const Lanes first = (Lanes)_mm512_unpacklo_epi16(zeros, before) + sums[0];
    const Lanes second = (Lanes)_mm512_unpackhi_epi16(zeros, before) + sums[1];
    const __m512i after = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    const __m512i fours = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    _mm512_mask_storeu_epi16(y, mask, _mm512_permutexvar_epi64(fours, after));
  }
};
#endif

// The factors of one row of h for one block, the weights' own scales with them.
template <typename T, typename W>
inline void block_factors(const float* h, const W* const* rows, int64_t column,
                          typename Step<T>::Factor* factors) {
  float scaled[RANKS];
  for (int j = 0; j < RANKS; ++j) scaled[j] = h[j] * row_scale(rows[j] - column);
  Step<T>::make_factors(scaled, RANKS, factors);
}

// totals += the products with a block's rows. `totals` has room for whole steps.
template <typename T, bool AHEAD, typename W>
inline void add_tile(const typename Step<T>::Factor (&factors)[RANKS / Step<T>::ROWS],
                     const W* const* rows, const W* const* ahead, int64_t width, float* totals) {
  using S = Step<T>;
  const auto step = [&](int64_t column, int64_t count) {
    Lanes sums[S::VECTORS];
    for (int v = 0; v < S::VECTORS; ++v) sums[v] = load(totals + column + v * LANES);
    for (int j = 0; j < RANKS; j += S::ROWS) {
      if (AHEAD && column * sizeof(W) % 64 == 0)
        for (int i = j; i < j + S::ROWS; ++i) prefetch_far(ahead[i] + column);
      typename S::Weights weights[S::VECTORS];
      S::read(rows + j, column, count, weights);
      const typename S::Factor factor = factors[j / S::ROWS];
      for (int v = 0; v < S::VECTORS; ++v) sums[v] = S::add(sums[v], factor, weights[v]);
    }
    for (int v = 0; v < S::VECTORS; ++v) store(totals + column + v * LANES, sums[v]);
  };
  int64_t column = 0;
  for (; column + S::COLUMNS <= width; column += S::COLUMNS) step(column, S::COLUMNS);
  if (column < width) step(column, width - column);
}

// y += totals.
template <typename T>
inline void add_totals(T* y, const float* totals, int64_t width) {
  using S = Step<T>;
  for (int64_t column = 0; column < width; column += S::COLUMNS) {
    Lanes sums[S::VECTORS];
    for (int v = 0; v < S::VECTORS; ++v) sums[v] = load(totals + column + v * LANES);
    S::add_to(y + column, sums, width - column);
  }
}

// A block's weights of one strip, as `add_product` reads them: [RANKS / ROWS][STRIP / LANES]
// vectors. As much of a later block is asked for.
template <typename T, typename W>
inline void lay_out(const W* const* rows, const W* const* ahead, int64_t column, int64_t width,
                    typename Step<T>::Weights* to) {
  using S = Step<T>;
  for (int j = 0; j < RANKS; j += S::ROWS) {
    for (int i = j; i < j + S::ROWS; ++i)
      for (size_t byte = 0; byte < STRIP * sizeof(W); byte += 64)
        prefetch_far(reinterpret_cast<const char*>(ahead[i] + column) + byte);
    for (int64_t c = 0; c < STRIP; c += S::COLUMNS, to += S::VECTORS) {
      typename S::Weights weights[S::VECTORS];
      S::read(rows + j, column + c, std::max<int64_t>(width - c, 0), weights);
      for (int v = 0; v < S::VECTORS; ++v) to[v] = weights[v];
    }
  }
}

// y[i] += the product of row i's factors, [ROWS, steps], and a strip laid out.
template <int ROWS, typename T>
inline void add_product(const typename Step<T>::Factor* factors, int64_t steps,
                        const typename Step<T>::Weights* strip, int64_t width, T* y,
                        int64_t y_stride) {
  using S = Step<T>;
  constexpr int VECTORS = STRIP / LANES;
  Lanes sums[ROWS][VECTORS] = {};
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v)
        sums[i][v] = S::add(sums[i][v], factors[i * steps + s], strip[s * VECTORS + v]);
  }
  for (int i = 0; i < ROWS; ++i)
    for (int v = 0; v < VECTORS; v += S::VECTORS)
      if (v * LANES < width)
        S::add_to(y + i * y_stride + v * LANES, sums[i] + v, width - v * LANES);
}

}  // namespace tenora
