// The inner products of attention by AVX-512's dot products of bfloat16 pairs.
#pragma once

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

// Each quarter of the result holds the sums of that quarter of a, b, c, d.
inline __m512 add_quarters(const __m512 (&v)[4]) {
  const __m512 low = _mm512_unpacklo_ps(v[0], v[1]) + _mm512_unpackhi_ps(v[0], v[1]);
  const __m512 high = _mm512_unpacklo_ps(v[2], v[3]) + _mm512_unpackhi_ps(v[2], v[3]);
  const __m512d one = _mm512_unpacklo_pd((__m512d)low, (__m512d)high);
  const __m512d other = _mm512_unpackhi_pd((__m512d)low, (__m512d)high);
  return (__m512)one + (__m512)other;
}

// Quarter i of the result is the sum of the quarters of v[i].
inline __m512 add_across(const __m512 (&v)[4]) {
  const __m512 low =
      _mm512_shuffle_f32x4(v[0], v[1], 0x44) + _mm512_shuffle_f32x4(v[0], v[1], 0xee);
  const __m512 high =
      _mm512_shuffle_f32x4(v[2], v[3], 0x44) + _mm512_shuffle_f32x4(v[2], v[3], 0xee);
  return _mm512_shuffle_f32x4(low, high, 0x88) + _mm512_shuffle_f32x4(low, high, 0xdd);
}

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

// As add_across, of the greatest.
inline __m512 most_across(const __m512 (&v)[4]) {
  const __m512 low = _mm512_max_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44),
                                   _mm512_shuffle_f32x4(v[0], v[1], 0xee));
  const __m512 high = _mm512_max_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44),
                                    _mm512_shuffle_f32x4(v[2], v[3], 0xee));
  return _mm512_max_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                       _mm512_shuffle_f32x4(low, high, 0xdd));
}

// One number a row to the quarters of a vector, and back.
inline __m512 to_quarters(__m128 numbers) {
  const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(order, _mm512_castps128_ps512(numbers));
}
inline __m128 from_quarters(__m512 quarters) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(order, quarters));
}

inline __mmask16 first_lanes(int64_t count) {
  return (1u << std::clamp<int64_t>(count, 0, LANES)) - 1;
}

// Four rows from `row` on.
template <bool MASKED, int VECTORS>
inline void soften_four(const SoftmaxRows<bf16>& p, int64_t row) {
  const __mmask8 used = (1u << std::min<int64_t>(4, p.rows - row)) - 1;
  const __m512 none = _mm512_set1_ps(-__builtin_inff()), scale = _mm512_set1_ps(p.scale);
  __m512 lanes[4][VECTORS], most[4];
  for (int i = 0; i < 4; ++i) {
    const int64_t visible = row + i < p.rows ? p.visible[row + i] : 0;
    for (int j = 0; j < VECTORS; ++j) {
      const __m512 score = _mm512_loadu_ps(p.scores + (row + i) * KEY_TILE + j * LANES);
      lanes[i][j] = MASKED
                        ? _mm512_mask_mul_ps(none, first_lanes(visible - j * LANES), score, scale)
                        : _mm512_mul_ps(score, scale);
      most[i] = j ? _mm512_max_ps(most[i], lanes[i][j]) : lanes[i][j];
    }
  }
  __m512 high = most_across(most);
  high = _mm512_max_ps(high, _mm512_permute_ps(high, 0x4e));
  high = _mm512_max_ps(high, _mm512_permute_ps(high, 0xb1));
  const __m512 before = to_quarters(_mm_maskz_loadu_ps(used, p.highest + row));
  high = _mm512_max_ps(high, before);
  const __m512 base =
      _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(high, none, _CMP_NEQ_UQ), high);
  const Lanes shrunk = exp2_below_one((Lanes)_mm512_sub_ps(before, base));
  const __m128 factor = from_quarters((__m512)shrunk);
  __m512 total[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 of_row = _mm512_permutexvar_ps(_mm512_set1_epi32(4 * i), base);
    for (int j = 0; j < VECTORS; ++j) {
      const Lanes weight = exp2_below_one((Lanes)_mm512_sub_ps(lanes[i][j], of_row));
      total[i] = j ? _mm512_add_ps(total[i], (__m512)weight) : (__m512)weight;
      store(p.weights + (row + i) * KEY_TILE + j * LANES, weight);
    }
  }
  __m512 sums = add_across(total);
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0x4e));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0xb1));
  const __m128 sum = _mm_fmadd_ps(_mm_maskz_loadu_ps(used, p.sum + row), factor,
                                  from_quarters(sums));
  _mm_mask_storeu_ps(p.highest + row, used, from_quarters(high));
  _mm_mask_storeu_ps(p.sum + row, used, sum);
  _mm_mask_storeu_ps(p.factor + row, used, factor);
}

template <bool MASKED>
inline void soften(const SoftmaxRows<bf16>& p, int64_t columns) {
  static_assert(KEY_TILE == 8 * LANES);
  for (int64_t row = 0; row < p.rows; row += 4) {
    switch (columns / LANES) {
      case 8: soften_four<MASKED, 8>(p, row); break;
      case 6: soften_four<MASKED, 6>(p, row); break;
      case 4: soften_four<MASKED, 4>(p, row); break;
      default: soften_four<MASKED, 2>(p, row);
    }
  }
}

// Rows of 16 pairs each become columns.
inline void transpose(__m512i (&v)[16]) {
  __m512i w[16];
  for (int i = 0; i < 16; i += 2) {
    w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(w[i], w[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(w[i], w[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(w[i + 1], w[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(w[i + 1], w[i + 3]);
  }
  for (int i = 0; i < 16; i += 8) {
    for (int j = 0; j < 4; ++j) {
      w[i + j] = _mm512_shuffle_i32x4(v[i + j], v[i + j + 4], 0x88);
      w[i + j + 4] = _mm512_shuffle_i32x4(v[i + j], v[i + j + 4], 0xdd);
    }
  }
  for (int j = 0; j < 8; ++j) {
    v[j] = _mm512_shuffle_i32x4(w[j], w[j + 8], 0x88);
    v[j + 8] = _mm512_shuffle_i32x4(w[j], w[j + 8], 0xdd);
  }
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
