// What AVX-512 does for attention whatever it multiplies: softmax of four rows at once, sums of 16
// vectors at once, and the products in float32 where bfloat16 has none of its own.
#pragma once

namespace tenora {

// Quarter i of the result is the sum of the quarters of v[i].
inline __m512 add_across(const __m512 (&v)[4]) {
  const __m512 low =
      _mm512_shuffle_f32x4(v[0], v[1], 0x44) + _mm512_shuffle_f32x4(v[0], v[1], 0xee);
  const __m512 high =
      _mm512_shuffle_f32x4(v[2], v[3], 0x44) + _mm512_shuffle_f32x4(v[2], v[3], 0xee);
  return _mm512_shuffle_f32x4(low, high, 0x88) + _mm512_shuffle_f32x4(low, high, 0xdd);
}

// Rows of 16 numbers or pairs of them become columns.
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

// scores[i * stride + t] = q[i] . lines[t], for STEP lines. They become columns, so that each score
// is summed element by element, as a tile's is.
template <int ROWS, typename T>
inline void score_lines(const float* const* q, const Lines<T>& lines, int64_t head_dim,
                        float* scores, int64_t stride) {
  static_assert(STEP == LANES);
  Lanes sums[ROWS] = {};
  for (int64_t d = 0; d < head_dim; d += LANES) {
    __m512i keys[STEP];
    for (int t = 0; t < STEP; ++t) {
      keys[t] = (__m512i)load_up_to(lines[t] + d, head_dim - d);
      if (d % (64 / sizeof(T)) == 0) lines.fetch_at(t, d);
    }
    transpose(keys);
    for (int k = 0; k < LANES; ++k)
      for (int i = 0; i < ROWS; ++i) sums[i] += (Lanes)keys[k] * q[i][d + k];
  }
  for (int i = 0; i < ROWS; ++i) store(scores + i * stride, sums[i]);
}

template <int ROWS, int VECTORS, typename T>
inline void mix_columns(const float* weights, int64_t stride, const Lines<T>& lines, int64_t first,
                        int64_t head_dim, float* mixed, int64_t pitch) {
  Lanes sums[ROWS][VECTORS];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j) sums[i][j] = load(mixed + i * pitch + j * LANES);
  for (int t = 0; t < STEP; ++t) {
    for (int j = 0; j < VECTORS; ++j) {
      const int64_t at = first + j * LANES;
      if (j * sizeof(T) % (64 / LANES) == 0) lines.fetch_at(t, at);
      const Lanes value = at < head_dim ? load_up_to(lines[t] + at, head_dim - at) : Lanes{};
      for (int i = 0; i < ROWS; ++i) sums[i][j] += value * weights[i * stride + t];
    }
  }
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < VECTORS; ++j) store(mixed + i * pitch + j * LANES, sums[i][j]);
}

// mixed[i] += sum over STEP lines t of weights[i * stride + t] * lines[t]. In pieces of 64 columns:
// fewer sums at a time would wait for themselves.
template <int ROWS, typename T>
inline void mix_lines(const float* weights, int64_t stride, const Lines<T>& lines, int64_t head_dim,
                      float* mixed, int64_t pitch) {
  int64_t d = 0;
  for (; d + 4 * LANES <= pitch; d += 4 * LANES)
    mix_columns<ROWS, 4>(weights, stride, lines, d, head_dim, mixed + d, pitch);
  if (d < pitch) mix_columns<ROWS, 2>(weights, stride, lines, d, head_dim, mixed + d, pitch);
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
template <bool MASKED, int VECTORS, typename Number>
inline void soften_four(const SoftmaxRows<Number>& p, int64_t row) {
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

template <bool MASKED, typename Number>
inline void soften(const SoftmaxRows<Number>& p, int64_t columns) {
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

// Lines side by side: packed[d, t] of KEY_TILE columns. `count` is a multiple of LANES.
template <typename T>
inline void pack_keys(const T* const* lines, int64_t count, int64_t offset, int64_t head_dim,
                      int64_t depth, float* packed) {
  for (int64_t t = 0; t < count; t += LANES) {
    for (int64_t d = 0; d < depth; d += LANES) {
      __m512i keys[LANES];
      for (int i = 0; i < LANES; ++i)
        keys[i] = d < head_dim ? (__m512i)load_up_to(lines[t + i] + offset + d, head_dim - d)
                               : _mm512_setzero_si512();
      transpose(keys);
      for (int i = 0; i < LANES; ++i)
        _mm512_storeu_si512(packed + (d + i) * KEY_TILE + t, keys[i]);
    }
  }
}

}  // namespace tenora
