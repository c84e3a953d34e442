// The inner products of attention by AVX-512's dot products of bfloat16 pairs.
#pragma once

#include "attention_avx512.h"

namespace tenora {

template <>
struct Element<bf16> {
  using type = bf16;
  static constexpr int64_t PAIR = 2;
};

// 32 elements, or the first `count` and zeros.
inline __m512i load_pairs(const bf16* from, int64_t count) {
  const __mmask32 mask = count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1;
  return _mm512_maskz_loadu_epi16(mask, from);
}

inline __m512 add_pairs(__m512 sum, __m512i one, __m512i other) {
  return _mm512_dpbf16_ps(sum, (__m512bh)one, (__m512bh)other);
}

inline __m512i repeat_pair(const bf16* pair) {
  int bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return _mm512_set1_epi32(bits);
}

inline void store_elements(bf16* to, Lanes lanes) { store(to, lanes); }

// Elements d..d + 8 of lines first, first + 4, .., a quarter of the result each.
inline __m512i quad_of(const Lines<bf16>& lines, int first, int64_t d, int64_t head_dim) {
  const auto eight = [&](int t) {
    const bf16* from = lines[first + 4 * t] + d;
    if (d + 8 <= head_dim) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm_maskz_loadu_epi16((1u << (head_dim - d)) - 1, from);
  };
  __m512i quad = _mm512_castsi128_si512(eight(0));
  quad = _mm512_mask_broadcast_i32x4(quad, 0x00f0, eight(1));
  quad = _mm512_mask_broadcast_i32x4(quad, 0x0f00, eight(2));
  return _mm512_mask_broadcast_i32x4(quad, 0xf000, eight(3));
}

// Each lane's four sums as `multiply_scores` adds them, of 16 lines.
inline __m512 add_fours(const __m512 (&v)[4]) {
  const __m512i low = (__m512i)_mm512_unpacklo_ps(v[0], v[1]);
  const __m512i high = (__m512i)_mm512_unpackhi_ps(v[0], v[1]);
  const __m512i low2 = (__m512i)_mm512_unpacklo_ps(v[2], v[3]);
  const __m512i high2 = (__m512i)_mm512_unpackhi_ps(v[2], v[3]);
  const __m512 zero = (__m512)_mm512_unpacklo_epi64(low, low2);
  const __m512 one = (__m512)_mm512_unpackhi_epi64(low, low2);
  const __m512 two = (__m512)_mm512_unpacklo_epi64(high, high2);
  const __m512 three = (__m512)_mm512_unpackhi_epi64(high, high2);
  return ((zero + one) + two) + three;
}

// Four sums a score, of every fourth pair, as `multiply_scores` makes them.
template <int ROWS>
inline void score_lines(const bf16* const* q, const Lines<bf16>& lines, int64_t head_dim,
                        float* scores, int64_t stride) {
  __m512 sums[ROWS][4];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < 4; ++j) sums[i][j] = _mm512_setzero_ps();
  for (int64_t d = 0; d < head_dim; d += 8) {
    __m512i keys[4];
    for (int j = 0; j < 4; ++j) {
      // line j, j + 4, ..: so that the sums of quarters come out in the order of lines
      keys[j] = quad_of(lines, j, d, head_dim);
    }
    if (d % 32 == 0)
      for (int t = 0; t < STEP; ++t) lines.fetch_at(t, d);
    for (int i = 0; i < ROWS; ++i) {
      const __m512i query = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)(q[i] + d)));
      for (int j = 0; j < 4; ++j) sums[i][j] = add_pairs(sums[i][j], keys[j], query);
    }
  }
  for (int i = 0; i < ROWS; ++i) _mm512_storeu_ps(scores + i * stride, add_fours(sums[i]));
}

// Columns 0..15 and 16..31 of two lines, as pairs.
inline void interleave(__m512i one, __m512i other, __m512i (&pairs)[2]) {
  alignas(64) static constexpr uint16_t ORDER[64] = {
      0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
      11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  pairs[0] = _mm512_permutex2var_epi16(one, _mm512_load_si512(ORDER), other);
  pairs[1] = _mm512_permutex2var_epi16(one, _mm512_load_si512(ORDER + 32), other);
}

template <int ROWS, int VECTORS>
inline void mix_columns(const bf16* weights, int64_t stride, const Lines<bf16>& lines,
                        int64_t first, int64_t head_dim, float* mixed, int64_t pitch) {
  __m512 sums[ROWS][VECTORS];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j)
      sums[i][j] = _mm512_loadu_ps(mixed + i * pitch + j * LANES);
  for (int t = 0; t < STEP; t += 2) {
    for (int j = 0; j < VECTORS; j += 2) {
      __m512i pairs[2];
      const int64_t at = first + j * LANES;
      lines.fetch_at(t, at);
      lines.fetch_at(t + 1, at);
      interleave(load_pairs(lines[t] + at, head_dim - at),
                 load_pairs(lines[t + 1] + at, head_dim - at), pairs);
      for (int i = 0; i < ROWS; ++i) {
        const __m512i weight = repeat_pair(weights + i * stride + t);
        sums[i][j] = add_pairs(sums[i][j], pairs[0], weight);
        sums[i][j + 1] = add_pairs(sums[i][j + 1], pairs[1], weight);
      }
    }
  }
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j) _mm512_storeu_ps(mixed + i * pitch + j * LANES, sums[i][j]);
}

template <int ROWS>
inline void mix_lines(const bf16* weights, int64_t stride, const Lines<bf16>& lines,
                      int64_t head_dim, float* mixed, int64_t pitch) {
  int64_t d = 0;
  for (; d + 64 <= pitch; d += 64)
    mix_columns<ROWS, 4>(weights, stride, lines, d, head_dim, mixed + d, pitch);
  if (d < pitch)
    mix_columns<ROWS, 2>(weights, stride, lines, d, head_dim, mixed + d, pitch);
}

template <int ROWS, int VECTORS>
inline void add_pair_of_lines(const bf16* a, int64_t a_stride, const bf16* b,
                              __m512 (&sums)[ROWS][VECTORS]) {
  __m512i columns[VECTORS];
  for (int j = 0; j < VECTORS; ++j) columns[j] = _mm512_loadu_si512(b + j * 2 * LANES);
  for (int i = 0; i < ROWS; ++i) {
    const __m512i pair = repeat_pair(a + i * a_stride);
    for (int j = 0; j < VECTORS; ++j) sums[i][j] = add_pairs(sums[i][j], columns[j], pair);
  }
}

template <int ROWS, int VECTORS>
inline void score_block(const bf16* a, int64_t a_stride, const bf16* b, int64_t b_columns,
                        int64_t depth, float* c, int64_t c_stride) {
  for (int64_t first = 0; first < 8; first += 2) {
    __m512 sums[ROWS][VECTORS];
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < VECTORS; ++j) sums[i][j] = _mm512_setzero_ps();
    for (int64_t k = first; k < depth; k += 8)
      add_pair_of_lines(a + k, a_stride, b + k * b_columns, sums);
    for (int i = 0; i < ROWS; ++i) {
      float* to = c + i * c_stride;
      for (int j = 0; j < VECTORS; ++j, to += LANES)
        _mm512_storeu_ps(to, first ? _mm512_loadu_ps(to) + sums[i][j] : sums[i][j]);
    }
  }
}

template <int ROWS, int VECTORS>
inline void mix_block(const bf16* a, int64_t a_stride, const bf16* b, int64_t b_columns,
                      int64_t depth, float* c, int64_t c_stride, const float* factor) {
  __m512 sums[ROWS][VECTORS];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j)
      sums[i][j] = _mm512_loadu_ps(c + i * c_stride + j * LANES) * factor[i];
  for (int64_t k = 0; k < depth; k += 2)
    add_pair_of_lines(a + k, a_stride, b + k * b_columns, sums);
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j)
      _mm512_storeu_ps(c + i * c_stride + j * LANES, sums[i][j]);
}

inline void pack_keys(const bf16* const* lines, int64_t count, int64_t offset, int64_t head_dim,
                      int64_t depth, bf16* packed) {
  for (int64_t t = 0; t < count; t += 16) {
    for (int64_t d = 0; d < depth; d += 32) {
      __m512i keys[16];
      for (int i = 0; i < 16; ++i)
        keys[i] = load_pairs(lines[t + i] + offset + d, head_dim - d);
      transpose(keys);
      for (int i = 0; i < 16; ++i)
        _mm512_storeu_si512(packed + (d + 2 * i) * KEY_TILE + 2 * t, keys[i]);
    }
  }
}

inline void pack_values(const bf16* const* lines, int64_t count, int64_t offset,
                        int64_t head_dim, int64_t pitch, bf16* packed) {
  for (int64_t t = 0; t < count; t += 2) {
    for (int64_t d = 0; d < pitch; d += 32) {
      __m512i pairs[2];
      interleave(load_pairs(lines[t] + offset + d, head_dim - d),
                 load_pairs(lines[t + 1] + offset + d, head_dim - d), pairs);
      _mm512_storeu_si512(packed + t * pitch + 2 * d, pairs[0]);
      _mm512_storeu_si512(packed + t * pitch + 2 * d + 32, pairs[1]);
    }
  }
}

inline void copy_query(const bf16* q, int64_t head_dim, int64_t depth, bf16* to) {
  for (int64_t d = 0; d < depth; d += 32)
    _mm512_storeu_si512(to + d, load_pairs(q + d, head_dim - d));
}

}  // namespace tenora
