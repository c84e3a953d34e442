// y = x W^T + bias on weights packed once. No torch in here.
//
// A packed weight is cut into panels of 32 outputs, so that all that a tile of few rows reads is
// one stream of memory and two registers hold a step of it: [panels][in / step][32][step], where a
// step is what the dot product instructions take at once: one float32, two bfloat16 or four int8
// inputs. The last panel is filled up with zeros.
//
// Weights of 8 bits: one scale an output, kept moved by 128 as the instructions want one operand
// unsigned. Inputs are rounded to 8 bits while the step runs, with one scale for each group of 64
// of a row: one for all of a row (LLM.int8, Dettmers et al. 2022, section 2) loses four times as much
// on SmolLM2-135M, whose activations have outliers.
#pragma once

#include <cstdint>

#include "team.h"
#include "vectors.h"

namespace tenora {

constexpr int64_t PANEL = 32;  // outputs of one panel
template <typename T>
constexpr int64_t STEP_OF = sizeof(T) == 2 ? 2 : 1;  // inputs that a lane takes at once
constexpr int64_t INT8_STEP = 4;                     // likewise, of 8 bits

inline int64_t panels_of(int64_t out) { return (out + PANEL - 1) / PANEL; }

// How many elements the packed form of an [out, in] weight takes.
inline int64_t packed_elements(int64_t out, int64_t in) { return panels_of(out) * PANEL * in; }

template <typename T>
struct PackedWeight {
  const void* packed;  // of T, or of uint8 where there are scales
  const T* bias;       // [out], or null
  int64_t out, in;
  const float* scales = nullptr;  // of each output, filled up to whole panels; null: not quantised
};

constexpr int64_t GROUP = 64;  // inputs of one scale

inline int64_t groups_of(int64_t in) { return (in + GROUP - 1) / GROUP; }

// Inputs of a product, and room for their rounded form.
template <typename T>
struct RowsOf {
  const T* data;
  int64_t stride;
  int64_t rows;
  int8_t* quantised = nullptr;  // [rows, in]
  float* scales = nullptr;      // [rows, groups]
  int32_t* offsets = nullptr;   // [rows, groups], 128 times the sum of a group's rounded inputs
};

// `in` is even for bfloat16.
template <typename T>
void pack_weight(const T* weight, int64_t out, int64_t in, T* packed);

// `in` is a multiple of 4.
template <typename T>
void quantise_weight(const T* weight, int64_t out, int64_t in, uint8_t* packed, float* scales);

// One output's weights out of the packed form.
template <typename T>
void unpack_row(const PackedWeight<T>& weight, int64_t row, T* to);

// Rounds `x` to 8 bits; the phase before a product with a quantised weight.
template <typename T>
void quantise_rows(Member& member, const RowsOf<T>& x, int64_t in);

// y[rows, out] = x[rows, in] W^T + bias, rounded once; with `add`, y += that. One phase.
template <typename T>
void multiply(Member& member, const RowsOf<T>& x, const PackedWeight<T>& weight, T* y,
              int64_t y_stride, bool add = false);

}  // namespace tenora
