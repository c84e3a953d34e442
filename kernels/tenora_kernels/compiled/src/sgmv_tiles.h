// The inner loops of sgmv. Weights come in blocks of RANKS rank rows, which are read side by side:
// as many streams as there are rows, so that memory is busy however far apart the rows lie. While
// one block is read, a later one is asked for at the same place.
#pragma once

#include "vectors.h"

namespace tenora {

constexpr int RANKS = 8;  // rank rows of a block
constexpr int STRIP = 64;  // columns of an expansion tile, whose sums are kept in registers

// Dot products of ROWS rows of x with a block's rows of A, each summed over its lanes in one order.
template <int ROWS, bool AHEAD, typename T>
inline void dot_tile(const T* const* x, const T* const* a, const T* const* ahead, int64_t n,
                     float (&out)[ROWS][RANKS]) {
  Lanes sums[ROWS][RANKS] = {};
  constexpr int64_t LINE = 64 / sizeof(T);
  int64_t k = 0;
#ifdef TENORA_BF16_DOT
  if constexpr (sizeof(T) == 2) {
    const auto step = [&](__mmask32 mask) {
      __m512bh rows[ROWS];
      for (int i = 0; i < ROWS; ++i) rows[i] = (__m512bh)_mm512_maskz_loadu_epi16(mask, x[i] + k);
      for (int j = 0; j < RANKS; ++j) {
        const __m512bh weights = (__m512bh)_mm512_maskz_loadu_epi16(mask, a[j] + k);
        if constexpr (AHEAD) prefetch(ahead[j] + k);
        for (int i = 0; i < ROWS; ++i)
          sums[i][j] = (Lanes)_mm512_dpbf16_ps((__m512)sums[i][j], rows[i], weights);
      }
    };
    for (; k + LINE <= n; k += LINE) step(0xffffffffu);
    if (k < n) step((1u << (n - k)) - 1);
    k = n;
  }
#endif
  for (; k + LANES <= n; k += LANES) {
    Lanes rows[ROWS];
    for (int i = 0; i < ROWS; ++i) rows[i] = load(x[i] + k);
    for (int j = 0; j < RANKS; ++j) {
      const Lanes weights = load(a[j] + k);
      if (AHEAD && k % LINE == 0) prefetch(ahead[j] + k);
      for (int i = 0; i < ROWS; ++i) sums[i][j] += rows[i] * weights;
    }
  }
  if (k < n) {
    for (int j = 0; j < RANKS; ++j) {
      const Lanes weights = load_part(a[j] + k, n - k);
      for (int i = 0; i < ROWS; ++i) sums[i][j] += load_part(x[i] + k, n - k) * weights;
    }
  }
  for (int i = 0; i < ROWS; ++i) sums8(sums[i], out[i]);
}

// totals[c] += sum over j of h[j] * b[j][c], one j after the other.
template <bool AHEAD, typename T>
inline void add_tile(const float (&h)[RANKS], const T* const* b, const T* const* ahead,
                     int64_t width, float* totals) {
  Lanes factors[RANKS];
  for (int j = 0; j < RANKS; ++j) factors[j] = Lanes{} + h[j];
  constexpr int64_t LINE = 64 / sizeof(T);
  int64_t c = 0;
  for (; c + LANES <= width; c += LANES) {
    if (AHEAD && c % LINE == 0)
      for (int j = 0; j < RANKS; ++j) prefetch(ahead[j] + c);
    Lanes total = load(totals + c);
    for (int j = 0; j < RANKS; ++j) total += factors[j] * load(b[j] + c);
    store(totals + c, total);
  }
  if (c < width) {
    Lanes total = load(totals + c);
    for (int j = 0; j < RANKS; ++j) total += factors[j] * load_part(b[j] + c, width - c);
    store(totals + c, total);
  }
}

// out[i] = sum over r of h[i][r] * b[r], one r after the other, over STRIP columns.
template <int ROWS>
inline void product_tile(const float* h, int64_t rank, const float* b, float (*out)[STRIP]) {
  constexpr int VECTORS = STRIP / LANES;
  Lanes sums[ROWS][VECTORS] = {};
  for (int64_t r = 0; r < rank; ++r) {
    Lanes weights[VECTORS];
    for (int v = 0; v < VECTORS; ++v) weights[v] = load(b + r * STRIP + v * LANES);
    for (int i = 0; i < ROWS; ++i) {
      const Lanes factor = Lanes{} + h[i * rank + r];
      for (int v = 0; v < VECTORS; ++v) sums[i][v] += factor * weights[v];
    }
  }
  for (int i = 0; i < ROWS; ++i)
    for (int v = 0; v < VECTORS; ++v) store(out[i] + v * LANES, sums[i][v]);
}

// y += totals.
template <typename T>
inline void add_to(T* y, const float* totals, int64_t width) {
  int64_t c = 0;
  for (; c + LANES <= width; c += LANES) store(y + c, load(y + c) + load(totals + c));
  if (c < width)
    store_part(y + c, load_part(y + c, width - c) + load_part(totals + c, width - c), width - c);
}

}  // namespace tenora
