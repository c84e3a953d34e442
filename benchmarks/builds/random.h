// Numbers that depend on their name alone: the same in every build, wherever they lie.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

// What a number belongs to, before the places within it.
enum class Kind : uint64_t { Projection, Head, Adapter, Context, Token, Input, Pages };

inline uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline uint64_t name_of(Kind kind, std::initializer_list<int64_t> places) {
  uint64_t name = mixed(static_cast<uint64_t>(kind));
  for (const int64_t place : places) name = mixed(name ^ static_cast<uint64_t>(place));
  return name;
}

// `count` bfloat16 of a uniform distribution around 0.
inline void fill(uint16_t* to, int64_t count, uint64_t name, double deviation) {
  const float scale = static_cast<float>(std::sqrt(3.0) * deviation / 2147483648.0);
  const uint32_t first = static_cast<uint32_t>(name), step = static_cast<uint32_t>(name >> 32) | 1;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x = first + static_cast<uint32_t>(i) * step;
    x = (x ^ (x >> 16)) * 0x7feb352d;
    x = (x ^ (x >> 15)) * 0x846ca68b;
    const float value = scale * static_cast<float>(static_cast<int32_t>(x ^ (x >> 16)));
    to[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16);
  }
}
