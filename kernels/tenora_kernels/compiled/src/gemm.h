// y = x W^T + bias on weights packed once. No torch in here.
//
// A packed weight is cut into panels of 16 outputs, so that one panel is one stream of memory and
// one register holds a step of it. Within a panel bfloat16 inputs lie in pairs, as the dot product
// instructions take them: [panels][in / 2][16][2]; float32 lies as [panels][in][16]. The last
// panel is filled up with zeros.
#pragma once

#include <cstdint>

#include "team.h"
#include "vectors.h"

namespace tenora {

constexpr int64_t PANEL = 16;  // outputs of one panel

inline int64_t panels_of(int64_t out) { return (out + PANEL - 1) / PANEL; }

// How many elements the packed form of an [out, in] weight takes.
inline int64_t packed_elements(int64_t out, int64_t in) { return panels_of(out) * PANEL * in; }

// `in` is even for bfloat16.
template <typename T>
void pack_weight(const T* weight, int64_t out, int64_t in, T* packed);

// One output's weights out of the packed form.
template <typename T>
void unpack_row(const T* packed, int64_t in, int64_t row, T* weights);

template <typename T>
struct PackedWeight {
  const T* packed;
  const T* bias;  // [out], or null
  int64_t out, in;
};

// y[rows, out] = x[rows, in] W^T + bias, rounded once; with `add`, y += that. One phase.
template <typename T>
void multiply(Member& member, const T* x, int64_t x_stride, int64_t rows,
              const PackedWeight<T>& weight, T* y, int64_t y_stride, bool add = false);

}  // namespace tenora
