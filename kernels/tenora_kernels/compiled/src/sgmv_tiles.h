// The inner loop of sgmv's shrink. Weights come in blocks of RANKS rank rows, which are read side by
// side: as many streams as there are rows, so that memory is busy however far apart the rows lie.
// While one block is read, a later one is asked for.
#pragma once

#include <algorithm>

#include "vectors.h"

namespace tenora {

constexpr int RANKS = 8;   // rank rows of a block

// A row of int8 weights has its scale right before it.
inline float row_scale(const int8_t* row) {
  float scale;
  std::memcpy(&scale, row - sizeof(scale), sizeof(scale));
  return scale;
}
template <typename W>
inline float row_scale(const W*) {
  return 1.0f;
}

// What one step of a dot product multiplies: TERMS elements, whatever kind of weights they were.
#ifdef TENORA_BF16_DOT
template <typename T>
constexpr int TERMS = sizeof(T) == 2 ? 32 : LANES;

inline __m512bh terms(const bf16*, const bf16* from) {
  return (__m512bh)_mm512_loadu_si512(from);
}
inline __m512bh terms_part(const bf16*, const bf16* from, int64_t count) {
  return (__m512bh)_mm512_maskz_loadu_epi16((1u << count) - 1, from);
}
inline __m512bh widen(__m256i bytes) {
  const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
  const __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
  return _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}
inline __m512bh terms(const bf16*, const int8_t* from) {
  return widen(_mm256_loadu_si256((const __m256i*)from));
}
inline __m512bh terms_part(const bf16*, const int8_t* from, int64_t count) {
  return widen(_mm256_maskz_loadu_epi8((1u << count) - 1, from));
}
inline Lanes add_products(Lanes sums, __m512bh one, __m512bh other) {
  return (Lanes)_mm512_dpbf16_ps((__m512)sums, one, other);
}
#else
template <typename T>
constexpr int TERMS = LANES;
#endif
template <typename T, typename W>
inline Lanes terms(const T*, const W* from) {
  return load(from);
}
template <typename T, typename W>
inline Lanes terms_part(const T*, const W* from, int64_t count) {
  return load_part(from, count);
}
inline Lanes add_products(Lanes sums, Lanes one, Lanes other) { return sums + one * other; }

// What a tile asks for while it works: some rows of a later block. The tiles of a block share them
// out.
template <typename W>
struct Ahead {
  const W* const* rows;
  int first, last;
};

// Dot products of ROWS rows of x with a block's rows of A, each summed over its lanes in one order.
template <int ROWS, typename T, typename W>
inline void dot_tile(const T* const* x, const W* const* a, const Ahead<W>& ahead, int64_t n,
                     float (&out)[ROWS][RANKS]) {
  constexpr T* KIND = nullptr;
  constexpr int STEP = TERMS<T>;
  Lanes sums[ROWS][RANKS] = {};
  int64_t k = 0;
  for (; k + STEP <= n; k += STEP) {
    decltype(terms(KIND, x[0])) rows[ROWS];
    for (int i = 0; i < ROWS; ++i) rows[i] = terms(KIND, x[i] + k);
    if constexpr (ROWS == 1)
      for (int j = 0; j < RANKS; ++j) prefetch_far(ahead.rows[j] + k);
    else
      for (int j = ahead.first; j < ahead.last; ++j) prefetch_far(ahead.rows[j] + k);
    for (int j = 0; j < RANKS; ++j) {
      const auto weights = terms(KIND, a[j] + k);
      for (int i = 0; i < ROWS; ++i) sums[i][j] = add_products(sums[i][j], rows[i], weights);
    }
  }
  if (k < n) {
    decltype(terms(KIND, x[0])) rows[ROWS];
    for (int i = 0; i < ROWS; ++i) rows[i] = terms_part(KIND, x[i] + k, n - k);
    for (int j = 0; j < RANKS; ++j) {
      const auto weights = terms_part(KIND, a[j] + k, n - k);
      for (int i = 0; i < ROWS; ++i) sums[i][j] = add_products(sums[i][j], rows[i], weights);
    }
  }
  for (int i = 0; i < ROWS; ++i) sums8(sums[i], out[i]);
}

}  // namespace tenora
