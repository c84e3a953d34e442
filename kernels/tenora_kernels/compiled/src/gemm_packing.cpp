// Weights into panels and out of them, and what is rounded to 8 bits.

#include <algorithm>
#include <cstring>
#include <vector>

#include "gemm.h"

namespace tenora {
namespace {

// Panels of elements of which a lane takes `step` at once.
template <typename Element>
void pack(const Element* weight, int64_t out, int64_t in, int64_t step, Element* packed) {
  std::memset(packed, 0, packed_elements(out, in) * sizeof(Element));
  for (int64_t row = 0; row < out; ++row) {
    Element* panel = packed + row / PANEL * PANEL * in + row % PANEL * step;
    for (int64_t k = 0; k < in; k += step)
      std::memcpy(panel + k * PANEL, weight + row * in + k, step * sizeof(Element));
  }
}

template <typename Element>
void unpack(const Element* packed, int64_t in, int64_t step, int64_t row, Element* weights) {
  const Element* panel = packed + row / PANEL * PANEL * in + row % PANEL * step;
  for (int64_t k = 0; k < in; k += step)
    std::memcpy(weights + k, panel + k * PANEL, step * sizeof(Element));
}

// The largest size, a NaN's infinite: as whole numbers the bits of what is not negative have its order.
template <typename T>
float largest(const T* values, int64_t count) {
  constexpr uint32_t INFINITE = 0x7f800000;
  Bits most{};
  by_lanes(values, count, [&](Lanes lanes, int64_t, int64_t) {
    const Bits size = (Bits)lanes & 0x7fffffffu;
    most = size > most ? size : most;
  });
  return highest((Lanes)(most < INFINITE ? most : Bits{} + INFINITE));
}

// Values as whole numbers of a scale, at most 127 from zero. Where one is infinite or a NaN so is the
// scale, and all products with the values are NaN.
template <typename T>
float quantise(const T* values, int64_t count, int8_t* to) {
  const float most = largest(values, count);
  const float inverse = most > 0 ? 127 / most : 0;
  by_lanes(values, count, [&](Lanes lanes, int64_t i, int64_t used) {
    const Lanes scaled = lanes * inverse;
    const Lanes half = scaled < 0 ? Lanes{} - 0.5f : Lanes{} + 0.5f;
    const Counts whole = __builtin_convertvector(scaled + half, Counts);
#ifdef __AVX512F__  // GCC converts the generic vector element by element
    const __m128i few = _mm512_cvtepi32_epi8((__m512i)whole);
#else
    typedef int8_t Few __attribute__((vector_size(LANES)));
    const Few few = __builtin_convertvector(whole, Few);
#endif
    std::memcpy(to + i, &few, used);
  });
  return most / 127;
}

}  // namespace

template <typename T>
void quantise_rows(Member& member, const RowsOf<T>& x, int64_t in) {
  const int64_t groups = groups_of(in);
  member.deal(x.rows, [&](int64_t row) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = group * GROUP, count = std::min(GROUP, in - first);
      int8_t* to = x.quantised + row * in + first;
      x.scales[row * groups + group] = quantise(x.data + row * x.stride + first, count, to);
      int32_t sum = 0;
      for (int64_t k = 0; k < count; ++k) sum += to[k];
      x.offsets[row * groups + group] = 128 * sum;
    }
  });
}

template <typename T>
void pack_weight(const T* weight, int64_t out, int64_t in, T* packed) {
  pack(weight, out, in, STEP_OF<T>, packed);
}

template <typename T>
void quantise_weight(const T* weight, int64_t out, int64_t in, uint8_t* packed, float* scales) {
  std::vector<uint8_t> moved(out * in);
  std::vector<int8_t> whole(in);
  std::fill_n(scales, panels_of(out) * PANEL, 0.0f);
  for (int64_t row = 0; row < out; ++row) {
    scales[row] = quantise(weight + row * in, in, whole.data());
    for (int64_t k = 0; k < in; ++k) moved[row * in + k] = whole[k] + 128;
  }
  pack(moved.data(), out, in, INT8_STEP, packed);
}

template <typename T>
void unpack_row(const PackedWeight<T>& weight, int64_t row, T* to) {
  if (!weight.scales) {
    unpack(static_cast<const T*>(weight.packed), weight.in, STEP_OF<T>, row, to);
    return;
  }
  thread_local std::vector<uint8_t> moved;
  moved.resize(weight.in);
  unpack(static_cast<const uint8_t*>(weight.packed), weight.in, INT8_STEP, row,
         moved.data());
  for (int64_t k = 0; k < weight.in; ++k) {
    const Lanes value = Lanes{} + (moved[k] - 128) * weight.scales[row];
    store_part(to + k, value, 1);
  }
}

#define TENORA_PACKING(T)                                                      \
  template void quantise_rows(Member&, const RowsOf<T>&, int64_t);             \
  template void pack_weight(const T*, int64_t, int64_t, T*);                   \
  template void quantise_weight(const T*, int64_t, int64_t, uint8_t*, float*); \
  template void unpack_row(const PackedWeight<T>&, int64_t, T*);
TENORA_PACKING(float)
TENORA_PACKING(bf16)
#undef TENORA_PACKING

}  // namespace tenora
