// The inner loops of sgmv. Weights come in blocks of RANKS rank rows, which are read side by side:
// as many streams as there are rows, so that memory is busy however far apart the rows lie. While
// one block is read, a later one is asked for.
#pragma once

#include "vectors.h"

namespace tenora {

constexpr int RANKS = 8;   // rank rows of a block
constexpr int STRIP = 64;  // columns of an expansion tile, whose sums are kept in registers

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

// Dot products of ROWS rows of x with a block's rows of A, each summed over its lanes in one order.
template <int ROWS, bool AHEAD, typename T, typename W>
inline void dot_tile(const T* const* x, const W* const* a, const W* const* ahead, int64_t n,
                     float (&out)[ROWS][RANKS]) {
  constexpr T* KIND = nullptr;
  constexpr int STEP = TERMS<T>;
  Lanes sums[ROWS][RANKS] = {};
  int64_t k = 0;
  for (; k + STEP <= n; k += STEP) {
    decltype(terms(KIND, x[0])) rows[ROWS];
    for (int i = 0; i < ROWS; ++i) rows[i] = terms(KIND, x[i] + k);
    for (int j = 0; j < RANKS; ++j) {
      if (AHEAD) prefetch(ahead[j] + k);
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

// y += totals, in the order of the columns.
template <typename T>
inline void add_to(T* y, const float* totals, int64_t width) {
  int64_t c = 0;
  for (; c + LANES <= width; c += LANES) store(y + c, load(y + c) + load(totals + c));
  if (c < width)
    store_part(y + c, load_part(y + c, width - c) + load_part(totals + c, width - c), width - c);
}

// totals[c] += sum over j of h[j] * b[j][c], one j after the other. `totals` has whole steps.
template <bool AHEAD, typename W>
inline void add_tile(const float* h, const W* const* b, const W* const* ahead, int64_t width,
                     float* totals) {
  Lanes factors[RANKS];
  for (int j = 0; j < RANKS; ++j) factors[j] = Lanes{} + h[j];
  int64_t c = 0;
  for (; c + LANES <= width; c += LANES) {
    Lanes total = load(totals + c);
    for (int j = 0; j < RANKS; ++j) {
      if (AHEAD && c * sizeof(W) % 64 == 0) prefetch(ahead[j] + c);
      total += factors[j] * load(b[j] + c);
    }
    store(totals + c, total);
  }
  if (c < width) {
    Lanes total = load(totals + c);
    for (int j = 0; j < RANKS; ++j) total += factors[j] * load_part(b[j] + c, width - c);
    store(totals + c, total);
  }
}

// y += totals, which were made from weights of the last argument's kind.
template <typename T, typename W>
inline void add_totals(T* y, const float* totals, int64_t width, const W*) {
  add_to(y, totals, width);
}

#ifdef TENORA_BF16_DOT
// bfloat16 weights are read two columns at a time, for which totals are kept with the even ones of
// 32 columns before the odd ones.
constexpr int PAIRED = 2 * LANES;
inline Lanes even(__m512i pairs) { return (Lanes)_mm512_slli_epi32(pairs, 16); }
inline Lanes odd(__m512i pairs) {
  return (Lanes)_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000));
}

template <bool AHEAD>
inline void add_tile(const float* h, const bf16* const* b, const bf16* const* ahead, int64_t width,
                     float* totals) {
  Lanes factors[RANKS];
  for (int j = 0; j < RANKS; ++j) factors[j] = Lanes{} + h[j];
  int64_t c = 0;
  for (; c + PAIRED <= width; c += PAIRED) {
    Lanes evens = load(totals + c), odds = load(totals + c + LANES);
    for (int j = 0; j < RANKS; ++j) {
      if (AHEAD) prefetch(ahead[j] + c);
      const __m512i pairs = _mm512_loadu_si512(b[j] + c);
      evens += factors[j] * even(pairs);
      odds += factors[j] * odd(pairs);
    }
    store(totals + c, evens);
    store(totals + c + LANES, odds);
  }
  if (c < width) {
    Lanes evens = load(totals + c), odds = load(totals + c + LANES);
    for (int j = 0; j < RANKS; ++j) {
      const __m512i pairs = _mm512_maskz_loadu_epi16((1u << (width - c)) - 1, b[j] + c);
      evens += factors[j] * even(pairs);
      odds += factors[j] * odd(pairs);
    }
    store(totals + c, evens);
    store(totals + c + LANES, odds);
  }
}

inline void add_totals(bf16* y, const float* totals, int64_t width, const bf16*) {
  for (int64_t c = 0; c < width; c += PAIRED) {
    const __mmask32 mask = width - c >= PAIRED ? 0xffffffffu : (1u << (width - c)) - 1;
    const __m512i pairs = _mm512_maskz_loadu_epi16(mask, y + c);
    const HalfBits low = narrowed(even(pairs) + load(totals + c));
    const HalfBits high = narrowed(odd(pairs) + load(totals + c + LANES));
    const Bits evens = __builtin_convertvector(low, Bits);
    const Bits odds = __builtin_convertvector(high, Bits) << 16;
    _mm512_mask_storeu_epi16(y + c, mask, (__m512i)(evens | odds));
  }
}
#endif

// out[i] = sum over r of h[i][r] * b[r], one r after the other, over STRIP columns.
template <int ROWS>
inline void product_tile(const float* h, int64_t h_stride, int64_t rank, const float* b,
                         float (*out)[STRIP]) {
  constexpr int VECTORS = STRIP / LANES;
  Lanes sums[ROWS][VECTORS] = {};
  for (int64_t r = 0; r < rank; ++r) {
    Lanes weights[VECTORS];
    for (int v = 0; v < VECTORS; ++v) weights[v] = load(b + r * STRIP + v * LANES);
    for (int i = 0; i < ROWS; ++i) {
      const Lanes factor = Lanes{} + h[i * h_stride + r];
      for (int v = 0; v < VECTORS; ++v) sums[i][v] += factor * weights[v];
    }
  }
  for (int i = 0; i < ROWS; ++i)
    for (int v = 0; v < VECTORS; ++v) store(out[i] + v * LANES, sums[i][v]);
}

}  // namespace tenora
