// RMSNorm and SiLU-mul. An op's rows are dealt to the members of a team; the caller ends the phase.
#pragma once

#include "team.h"
#include "vectors.h"

namespace tenora {

// out = x / sqrt(mean(x^2) + eps), rounded to T, times weight. `out` may be `x`.
template <typename T>
void rms_norm(Member& member, const T* x, int64_t x_stride, const T* weight, float eps, T* out,
              int64_t out_stride, int64_t rows, int64_t width);

// residual += x, rounded to T; out = the norm of the new residual. `out` may be `x`.
template <typename T>
void add_rms_norm(Member& member, const T* x, int64_t x_stride, T* residual,
                  int64_t residual_stride, const T* weight, float eps, T* out, int64_t out_stride,
                  int64_t rows, int64_t width);

// residual += the norm of x, rounded to T as rms_norm gives it.
template <typename T>
void add_normed(Member& member, const T* x, int64_t x_stride, const T* weight, float eps,
                T* residual, int64_t residual_stride, int64_t rows, int64_t width);

// The norm of each head of each row, in place: rows of `heads` times `head_dim` elements.
template <typename T>
void rms_norm_heads(Member& member, T* x, int64_t x_stride, const T* weight, float eps,
                    int64_t rows, int64_t heads, int64_t head_dim);

// out = silu(gate), rounded to T, times up; a row of `gate_up` is gate, then up.
template <typename T>
void silu_mul(Member& member, const T* gate_up, int64_t stride, T* out, int64_t out_stride,
              int64_t rows, int64_t intermediate);

}  // namespace tenora
