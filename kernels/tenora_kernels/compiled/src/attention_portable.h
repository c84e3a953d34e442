// What attention_avx512.h does, on any machine.
#pragma once

namespace tenora {

// Lanes of one, then of the other, by their numbers.
#if defined(__clang__)
#define TENORA_SHUFFLED(one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#else
#define TENORA_SHUFFLED(one, other, ...) __builtin_shuffle(one, other, Bits{__VA_ARGS__})
#endif

// Rows of 16 numbers become columns: four rounds of a perfect shuffle.
inline void transpose(Lanes (&v)[LANES]) {
  for (int round = 0; round < 4; ++round) {
    Lanes w[LANES];
    for (int i = 0; i < LANES / 2; ++i) {
      w[2 * i] = TENORA_SHUFFLED(v[i], v[i + LANES / 2], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                 21, 6, 22, 7, 23);
      w[2 * i + 1] = TENORA_SHUFFLED(v[i], v[i + LANES / 2], 8, 24, 9, 25, 10, 26, 11, 27,
                                     12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < LANES; ++i) v[i] = w[i];
  }
}

// scores[i * stride + t] = q[i] . lines[t], for STEP lines. They become columns, so that each score
// is summed element by element, as a tile's is.
template <int ROWS, typename T>
inline void score_lines(const float* const* q, const Lines<T>& lines, int64_t head_dim,
                        float* scores, int64_t stride) {
  static_assert(STEP == LANES);
  for (int t = 0; t < STEP; ++t) lines.fetch(t, head_dim);
  Lanes sums[ROWS] = {};
  for (int64_t d = 0; d < head_dim; d += LANES) {
    Lanes keys[STEP];
    for (int t = 0; t < STEP; ++t) keys[t] = load_up_to(lines[t] + d, head_dim - d);
    transpose(keys);
    for (int k = 0; k < LANES; ++k)
      for (int i = 0; i < ROWS; ++i) sums[i] += keys[k] * q[i][d + k];
  }
  for (int i = 0; i < ROWS; ++i) store(scores + i * stride, sums[i]);
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

}  // namespace tenora
