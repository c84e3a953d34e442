#include "norms.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tenora {

namespace {

constexpr int64_t TASK_ELEMENTS = 4096;  // about half a microsecond
constexpr int64_t PIECE_COLUMNS = 1024;

// Deals rows in groups of about TASK_ELEMENTS elements: work(row).
template <typename Work>
void deal_rows(Member& member, int64_t rows, int64_t width, Work&& work) {
  const int64_t group = std::max<int64_t>(1, TASK_ELEMENTS / std::max<int64_t>(width, 1));
  member.deal((rows + group - 1) / group, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * group);
    for (int64_t row = task * group; row < end; ++row) work(row);
  });
}

// Sum of squares of lanes(column, count), count elements from a column on, over the width.
template <typename Values>
inline float mean_square(int64_t width, Values&& lanes) {
  Lanes sums[4] = {};
  int64_t c = 0;
  for (; c + 4 * LANES <= width; c += 4 * LANES) {
    for (int i = 0; i < 4; ++i) {
      const Lanes x = lanes(c + i * LANES, LANES);
      sums[i] += x * x;
    }
  }
  for (; c < width; c += LANES) {
    const Lanes x = lanes(c, std::min<int64_t>(LANES, width - c));
    sums[0] += x * x;
  }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(width);
}

template <typename T>
inline void scale_row(const T* x, float factor, const T* weight, T* out, int64_t width) {
  by_vectors(0, width, [&](int64_t c, int64_t count) {
    const Lanes normed = rounded<T>(load_up_to(x + c, count) * factor);
    store_up_to(out + c, normed * load_up_to(weight + c, count), count);
  });
}

// What each element of a row is times before its weight: NaN where the squares overflow. It would be
// 0, and all logits of such a row 0, which look like numbers.
inline float factor_of(float mean_square, float eps) {
  using Limits = std::numeric_limits<float>;
  return mean_square <= Limits::max() ? 1.0f / std::sqrt(mean_square + eps) : Limits::quiet_NaN();
}

template <typename T>
inline float norm_factor(const T* x, float eps, int64_t width) {
  const float mean = mean_square(
      width, [x](int64_t column, int64_t count) { return load_up_to(x + column, count); });
  return factor_of(mean, eps);
}

template <typename T>
inline void norm_row(const T* x, const T* weight, float eps, T* out, int64_t width) {
  scale_row(x, norm_factor(x, eps, width), weight, out, width);
}

template <typename T>
inline Lanes exp_of(Lanes x) {
  return exp(x);
}

#ifdef TENORA_BF16_DOT
template <>
inline Lanes exp_of<bf16>(Lanes x) {
  return rough_exp2(x * 0x1.715476p+0f);
}
#endif

}  // namespace

template <typename T>
void rms_norm(Member& member, const T* x, int64_t x_stride, const T* weight, float eps, T* out,
              int64_t out_stride, int64_t rows, int64_t width) {
  deal_rows(member, rows, width, [&](int64_t row) {
    norm_row(x + row * x_stride, weight, eps, out + row * out_stride, width);
  });
}

template <typename T>
void add_rms_norm(Member& member, const T* x, int64_t x_stride, T* residual,
                  int64_t residual_stride, const T* weight, float eps, T* out, int64_t out_stride,
                  int64_t rows, int64_t width) {
  deal_rows(member, rows, width, [&](int64_t row) {
    const T* change = x + row * x_stride;
    T* total = residual + row * residual_stride;
    const float mean = mean_square(width, [&](int64_t column, int64_t count) {
      const Lanes lanes =
          rounded<T>(load_up_to(change + column, count) + load_up_to(total + column, count));
      store_up_to(total + column, lanes, count);
      return lanes;
    });
    scale_row(total, factor_of(mean, eps), weight, out + row * out_stride, width);
  });
}

template <typename T>
void add_normed(Member& member, const T* x, int64_t x_stride, const T* weight, float eps,
                T* residual, int64_t residual_stride, int64_t rows, int64_t width) {
  deal_rows(member, rows, width, [&](int64_t row) {
    const T* from = x + row * x_stride;
    T* total = residual + row * residual_stride;
    const float factor = norm_factor(from, eps, width);
    by_vectors(0, width, [&](int64_t c, int64_t count) {
      const Lanes scaled = rounded<T>(load_up_to(from + c, count) * factor);
      const Lanes normed = rounded<T>(scaled * load_up_to(weight + c, count));
      store_up_to(total + c, load_up_to(total + c, count) + normed, count);
    });
  });
}

template <typename T>
void rms_norm_heads(Member& member, T* x, int64_t x_stride, const T* weight, float eps,
                    int64_t rows, int64_t heads, int64_t head_dim) {
  deal_rows(member, rows, heads * head_dim, [&](int64_t row) {
    for (int64_t head = 0; head < heads; ++head) {
      T* values = x + row * x_stride + head * head_dim;
      norm_row(values, weight, eps, values, head_dim);
    }
  });
}

template <typename T>
void silu_mul(Member& member, const T* gate_up, int64_t stride, T* out, int64_t out_stride,
              int64_t rows, int64_t intermediate) {
  // One row of a decode step is work for several members: it is cut by columns, in cache lines.
  const int64_t pieces = std::max<int64_t>(1, (intermediate + PIECE_COLUMNS - 1) / PIECE_COLUMNS);
  const int64_t columns = (intermediate + pieces * 64 - 1) / (pieces * 64) * 64;
  deal_rows(member, rows * pieces, columns, [&](int64_t task) {
    const int64_t row = task / pieces;
    const int64_t first = task % pieces * columns;
    const int64_t end = std::min(intermediate, first + columns);
    const T* gate = gate_up + row * stride;
    const T* up = gate + intermediate;
    by_vectors(first, end, [&](int64_t c, int64_t count) {
      const Lanes lanes = load_up_to(gate + c, count);
      const Lanes silu = rounded<T>(lanes / (exp_of<T>(-lanes) + 1.0f));
      store_up_to(out + row * out_stride + c, silu * load_up_to(up + c, count), count);
    });
  });
}

#define INSTANTIATE(T)                                                                           \
  template void rms_norm<T>(Member&, const T*, int64_t, const T*, float, T*, int64_t, int64_t,   \
                            int64_t);                                                            \
  template void add_rms_norm<T>(Member&, const T*, int64_t, T*, int64_t, const T*, float, T*,    \
                                int64_t, int64_t, int64_t);                                      \
  template void add_normed<T>(Member&, const T*, int64_t, const T*, float, T*, int64_t, int64_t,  \
                              int64_t);                                                          \
  template void rms_norm_heads<T>(Member&, T*, int64_t, const T*, float, int64_t, int64_t,       \
                                  int64_t);                                                      \
  template void silu_mul<T>(Member&, const T*, int64_t, T*, int64_t, int64_t, int64_t);

INSTANTIATE(float)
INSTANTIATE(bf16)

}  // namespace tenora
