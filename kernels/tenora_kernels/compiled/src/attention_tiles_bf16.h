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

template <int ROWS>
inline void score_lines(const bf16* const* q, const Lines<bf16>& lines, int64_t head_dim,
                        float* scores, int64_t stride) {
  __m512 quarters[ROWS][4];
  for (int quad = 0; quad < 4; ++quad) {
    __m512 sums[ROWS][4];
    for (int i = 0; i < ROWS; ++i)
      for (int t = 0; t < 4; ++t) sums[i][t] = _mm512_setzero_ps();
    for (int64_t d = 0; d < head_dim; d += 32) {
      __m512i keys[4];
      for (int t = 0; t < 4; ++t) {
        keys[t] = load_pairs(lines[4 * quad + t] + d, head_dim - d);
        lines.fetch_at(4 * quad + t, d);
      }
      for (int i = 0; i < ROWS; ++i) {
        const __m512i query = load_pairs(q[i] + d, head_dim - d);
        for (int t = 0; t < 4; ++t) sums[i][t] = add_pairs(sums[i][t], query, keys[t]);
      }
    }
    for (int i = 0; i < ROWS; ++i) quarters[i][quad] = add_quarters(sums[i]);
  }
  for (int i = 0; i < ROWS; ++i) store(scores + i * stride, (Lanes)add_across(quarters[i]));
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
inline void multiply_block(const bf16* a, int64_t a_stride, const bf16* b, int64_t b_columns,
                           int64_t depth, float* c, int64_t c_stride, const float* factor) {
  __m512 sums[ROWS][VECTORS];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j)
      sums[i][j] = factor ? _mm512_loadu_ps(c + i * c_stride + j * LANES) * factor[i]
                          : _mm512_setzero_ps();
  for (int64_t k = 0; k < depth; k += 2) {
    __m512i columns[VECTORS];
    for (int j = 0; j < VECTORS; ++j)
      columns[j] = _mm512_loadu_si512(b + k * b_columns + j * 2 * LANES);
    for (int i = 0; i < ROWS; ++i) {
      const __m512i pair = repeat_pair(a + i * a_stride + k);
      for (int j = 0; j < VECTORS; ++j) sums[i][j] = add_pairs(sums[i][j], columns[j], pair);
    }
  }
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
