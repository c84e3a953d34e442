// Sixteen float32 lanes on any machine: the compiler's own vector types, which become one AVX-512
// register, two of AVX2, or four of NEON or SSE. bfloat16 is read and written as its 16 bits.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define TENORA_AVX512 1
#endif

#if defined(__AVX512BF16__) && defined(TENORA_AVX512)
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
  return reinterpret_cast<Lanes>(wide);
}

inline Lanes load(const int8_t* from) {
#ifdef __AVX512F__  // GCC converts the generic vector element by element
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#else
  typedef int8_t Bytes __attribute__((vector_size(16)));
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(bytes, Lanes);
#endif
}

// The first `count` < 16 elements, then zeros; nothing behind them is touched.
template <typename T>
inline Lanes load_part(const T* from, int64_t count) {
  T padded[LANES] = {};
  std::memcpy(padded, from, count * sizeof(T));
  return load(padded);
}

inline void store(float* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof(lanes)); }

// The bfloat16 of each lane: rounded to nearest, ties to even; a NaN stays a NaN. The instruction
// takes what is below the normal numbers for 0.
inline HalfBits narrowed(Lanes lanes) {
#ifdef TENORA_BF16_DOT
  return reinterpret_cast<HalfBits>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(lanes)));
#else
  const Bits bits = reinterpret_cast<Bits>(lanes);
  const Bits even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Bits quiet = (bits >> 16) | 0x40;
  return __builtin_convertvector(lanes != lanes ? quiet : even, HalfBits);
#endif
}

inline Lanes widened(HalfBits half) {
  return reinterpret_cast<Lanes>(__builtin_convertvector(half, Bits) << 16);
}

inline void store(bf16* to, Lanes lanes) {
  const HalfBits half = narrowed(lanes);
  std::memcpy(to, &half, sizeof(half));
}

template <typename T>
inline void store_part(T* to, Lanes lanes, int64_t count) {
  T padded[LANES];
  store(padded, lanes);
  std::memcpy(to, padded, count * sizeof(T));
}

// Sixteen elements, or the first `count` < 16 and zeros.
template <typename T>
inline Lanes load_up_to(const T* from, int64_t count) {
  return count >= LANES ? load(from) : load_part(from, count);
}

template <typename T>
inline void store_up_to(T* to, Lanes lanes, int64_t count) {
  if (count >= LANES) store(to, lanes);
  else store_part(to, lanes, count);
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

inline float highest(Lanes lanes) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight halves[2];
  std::memcpy(halves, &lanes, sizeof(lanes));
  const Eight eight = halves[0] > halves[1] ? halves[0] : halves[1];
  Four quarters[2];
  std::memcpy(quarters, &eight, sizeof(eight));
  const Four four = quarters[0] > quarters[1] ? quarters[0] : quarters[1];
  const float one = four[0] > four[2] ? four[0] : four[2];
  const float other = four[1] > four[3] ? four[1] : four[3];
  return one > other ? one : other;
}

// What a T keeps of the lanes. The compiler does not fuse the rounded value into a later sum.
template <typename T>
inline Lanes rounded(Lanes lanes);

template <>
inline Lanes rounded<bf16>(Lanes lanes) {
  return widened(narrowed(lanes));
}

template <>
inline Lanes rounded<float>(Lanes lanes) {
#if defined(__GNUC__) && !defined(__clang__)
  return __builtin_assoc_barrier(lanes);
#else
  return lanes;  // clang fuses only within an expression
#endif
}

// 2^whole * 2^fraction for |fraction| <= 1/2, where `shifted` is `whole` + POWER_SHIFT and whole is
// in -126..128. A minimax polynomial of degree 6: relative error below 1.2e-7, rounding included.
constexpr float POWER_SHIFT = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the whole part

inline Lanes power_of_two(Lanes shifted, Lanes fraction) {
  Lanes sum = fraction * 0x1.41fb74p-13f + 0x1.5f3ec2p-10f;
  sum = sum * fraction + 0x1.3b2d4ep-7f;
  sum = sum * fraction + 0x1.c6aee8p-5f;
  sum = sum * fraction + 0x1.ebfbdcp-3f;
  sum = sum * fraction + 0x1.62e430p-1f;
  sum = sum * fraction + 1.0f;
  const Bits bits =
      reinterpret_cast<Bits>(sum) + (reinterpret_cast<Bits>(shifted) << 23);
  return reinterpret_cast<Lanes>(bits);
}

// 2^x for x <= 0; 0 where that is below the normal numbers.
inline Lanes exp2_below_one(Lanes x) {
  const Lanes shifted = x + POWER_SHIFT;
  const Lanes power = power_of_two(shifted, x - (shifted - POWER_SHIFT));
  return x < -126.0f ? Lanes{} : power;
}

// e^x; 0 where that is below the normal numbers, infinite above the largest.
inline Lanes exp(Lanes x) {
  constexpr float LOG2_E = 0x1.715476p+0f, LN2_HIGH = 0x1.62e4p-1f, LN2_LOW = 0x1.7f7d1cp-20f;
  const Lanes shifted = x * LOG2_E + POWER_SHIFT;
  const Lanes whole = shifted - POWER_SHIFT;
  const Lanes rest = (x - whole * LN2_HIGH) - whole * LN2_LOW;
  const Lanes power = power_of_two(shifted, rest * LOG2_E);
  const Lanes bounded = x > 88.72283f ? Lanes{} + __builtin_inff() : power;
  return x < -87.33654f ? Lanes{} : bounded;
}

#ifdef TENORA_BF16_DOT
// 2^x, as exact as what is rounded to bfloat16 needs it: a minimax polynomial of degree 4 for the
// fraction, relative error below 4e-6.
inline Lanes rough_exp2(Lanes x) {
  const __m512 fraction =
      _mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 sum = _mm512_set1_ps(0x1.b7f734p-7f);
  sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(0x1.abf868p-5f));
  sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(0x1.ee2452p-3f));
  sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(0x1.62d6c6p-1f));
  sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(1.0f));
  return (Lanes)_mm512_scalef_ps(sum, (__m512)x);
}
#endif

// Calls step(column, count) for 16 columns at a time, and for those that are left.
template <typename Step>
inline void by_vectors(int64_t first, int64_t end, Step&& step) {
  int64_t c = first;
  for (; c + LANES <= end; c += LANES) step(c, LANES);
  if (c < end) step(c, end - c);
}

// Calls use(lanes, place, count) for 16 elements at a time, and for those that are left.
template <typename T, typename Use>
inline void by_lanes(const T* from, int64_t count, Use&& use) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) use(load(from + i), i, LANES);
  if (i < count) use(load_part(from + i, count - i), i, count - i);
}

// Always inlined: GCC drops a call that it finds to have no effect.
__attribute__((always_inline)) inline void prefetch(const void* line) {
  __builtin_prefetch(line, 0, 3);
}

// Into the second cache, for what will be used some 10 KB later. A core has few misses of its first
// cache in flight, which brings half of what it can read when every stretch of memory is short.
__attribute__((always_inline)) inline void prefetch_far(const void* line) {
  __builtin_prefetch(line, 0, 2);
}

}  // namespace tenora
