// The likeliest token of a row of logits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "vectors.h"

namespace tenora {

inline float value(float logit) { return logit; }
inline float value(bf16 logit) {
  const uint32_t bits = static_cast<uint32_t>(logit) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

// The first of the highest; a NaN is none. 0 where there is nothing but NaN.
template <typename T>
int64_t likeliest(const T* logits, int64_t count) {
  constexpr int64_t BLOCK = 64 * LANES;
  constexpr float LOWEST = -std::numeric_limits<float>::infinity();
  float best = LOWEST;
  int64_t start = 0;  // of the first block that holds it
  for (int64_t block = 0; block < count; block += BLOCK) {
    const int64_t end = std::min(block + BLOCK, count);
    Lanes most = Lanes{} + LOWEST;
    int64_t i = block;
    for (; i + LANES <= end; i += LANES) {
      const Lanes x = load(logits + i);
      most = x > most ? x : most;
    }
    float found = highest(most);
    for (; i < end; ++i) found = std::max(found, value(logits[i]));
    if (found > best) best = found, start = block;
  }
  for (int64_t i = start; i < count; ++i)
    if (value(logits[i]) == best) return i;
  return 0;
}

}  // namespace tenora
