// Rotary embedding and the scatter of keys and values into pages.
#pragma once

#include "pages.h"
#include "team.h"
#include "vectors.h"

namespace tenora {

template <typename T>
struct RopeArguments {
  HeadRows<T> q;  // rotated in place
  HeadRows<const T> k;
  HeadRows<const T> v;
  int64_t rows, heads;
  const float* cos;  // [max_positions, half]
  const float* sin;
  int64_t half;              // rotary_dim / 2
  const int64_t* positions;  // [rows]
  KVPages<T> pages;
  int64_t layer;
  const int64_t* slots;  // [rows], page * block_tokens + offset
};

// Dimension i is paired with i + half (the half-split convention of Hugging Face's Llama); cos, sin
// and both products are rounded to T, as transformers does. Dimensions from 2 * half on are copied.
template <typename T>
void rope_and_write(Member& member, const RopeArguments<T>& arguments);

// The same of queries alone, in place.
template <typename T>
void rotate(Member& member, const HeadRows<T>& q, int64_t rows, int64_t heads, const float* cos,
            const float* sin, int64_t half, const int64_t* positions);

}  // namespace tenora
