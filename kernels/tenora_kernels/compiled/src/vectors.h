// Sixteen float32 lanes on any machine: the compiler's own vector types, which become one AVX-512
// register, two of AVX2, or four of NEON or SSE. bfloat16 is read and written as its 16 bits.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define TENORA_BF16_DOT 1
#endif

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#define TENORA_INT8_DOT 1
#endif

namespace tenora {

using bf16 = uint16_t;

constexpr int LANES = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef int32_t Counts __attribute__((vector_size(64)));
typedef uint16_t HalfBits __attribute__((vector_size(32)));

inline Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

inline Lanes load(const bf16* from) {
  HalfBits half;
  std::memcpy(&half, from, sizeof(half));
  const Bits wide = __builtin_convertvector(half, Bits) << 16;
  return reinterpret_cast<const Lanes&>(wide);
}

// The first `count` < 16 elements, then zeros; nothing behind them is touched.
template <typename T>
inline Lanes load_part(const T* from, int64_t count) {
  T padded[LANES] = {};
  std::memcpy(padded, from, count * sizeof(T));
  return load(padded);
}

inline void store(float* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof(lanes)); }

// Rounds to nearest, ties to even; a NaN stays a NaN.
inline void store(bf16* to, Lanes lanes) {
  const Bits bits = reinterpret_cast<const Bits&>(lanes);
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Bits quiet = (bits >> 16) | 0x40;
  const Bits chosen = lanes != lanes ? quiet : rounded;
  const HalfBits half = __builtin_convertvector(chosen, HalfBits);
  std::memcpy(to, &half, sizeof(half));
}

template <typename T>
inline void store_part(T* to, Lanes lanes, int64_t count) {
  T padded[LANES];
  store(padded, lanes);
  std::memcpy(to, padded, count * sizeof(T));
}

// Always in the same order, so that a sum has the same bits wherever it is made.
inline float sum(Lanes lanes) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight halves[2];
  std::memcpy(halves, &lanes, sizeof(lanes));
  const Eight eight = halves[0] + halves[1];
  Four quarters[2];
  std::memcpy(quarters, &eight, sizeof(eight));
  const Four four = quarters[0] + quarters[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// `sum` of eight vectors at once.
inline void sums8(const Lanes (&lanes)[8], float (&out)[8]) {
#ifdef __AVX512F__
  __m512 halves[4], quarters[2];
  for (int i = 0; i < 4; ++i) {
    const __m512 one = (__m512)lanes[2 * i], other = (__m512)lanes[2 * i + 1];
    halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(one, other, 0x44),
                              _mm512_shuffle_f32x4(one, other, 0xee));
  }
  for (int i = 0; i < 2; ++i)
    quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(halves[2 * i], halves[2 * i + 1], 0x88),
                                _mm512_shuffle_f32x4(halves[2 * i], halves[2 * i + 1], 0xdd));
  const __m512 pairs = _mm512_add_ps(_mm512_shuffle_ps(quarters[0], quarters[1], 0x44),
                                     _mm512_shuffle_ps(quarters[0], quarters[1], 0xee));
  const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums)));
#else
  for (int i = 0; i < 8; ++i) out[i] = sum(lanes[i]);
#endif
}

inline void prefetch(const void* line) { __builtin_prefetch(line, 0, 3); }

}  // namespace tenora
