// The likeliest token of a row of logits.
#pragma once

#include <algorithm>
#include <cmath>
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

// In place of a token: no logit is a number, or the highest is infinite.
constexpr int64_t NO_NUMBER = -2;

inline bool is_number(float highest) {
  return std::abs(highest) <= std::numeric_limits<float>::max();
}

// The first of the highest; a NaN is none.
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
  if (!is_number(best)) return NO_NUMBER;
  for (int64_t i = start; i < count; ++i)
    if (value(logits[i]) == best) return i;
  return 0;
}

// The lanes whose bits are 1, the lowest first; `lowest` in the others.
inline Lanes allowed_of(Lanes lanes, uint32_t bits, float lowest) {
  constexpr Bits PLACES = {1,      2,      4,       8,       1 << 4,  1 << 5,  1 << 6,  1 << 7,
                           1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  return ((Bits{} + bits) & PLACES) != 0 ? lanes : Lanes{} + lowest;
}

// The same of the tokens whose bits are 1 in `allowed` [ceil(count / 32)], the first token the lowest
// of the first word. 0 where it allows none.
template <typename T>
int64_t likeliest(const T* logits, int64_t count, const uint32_t* allowed) {
  constexpr int64_t WORD = 2 * LANES;
  constexpr float LOWEST = -std::numeric_limits<float>::infinity();
  float best = LOWEST;
  int64_t start = 0;  // of the first word that holds it
  bool allows_any = false;
  for (int64_t word = 0; word < count; word += WORD) {
    const uint32_t bits = allowed[word / WORD];
    if (bits == 0) continue;
    allows_any = true;
    float found = LOWEST;
    if (word + WORD <= count) {
      const Lanes low = allowed_of(load(logits + word), bits, LOWEST);
      const Lanes high = allowed_of(load(logits + word + LANES), bits >> LANES, LOWEST);
      Lanes most = Lanes{} + LOWEST;
      most = low > most ? low : most;
      most = high > most ? high : most;
      found = highest(most);
    } else {
      for (int64_t i = word; i < count; ++i)
        if (bits >> (i - word) & 1) found = std::max(found, value(logits[i]));
    }
    if (found > best) best = found, start = word;
  }
  if (!allows_any) return 0;
  if (!is_number(best)) return NO_NUMBER;
  for (int64_t i = start; i < count; ++i)
    if ((allowed[i / WORD] >> i % WORD & 1) && value(logits[i]) == best) return i;
  return 0;
}

}  // namespace tenora
