// What attention over one part of a context leaves, per query row, and how parts are merged.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention.h"

namespace tenora {

constexpr int64_t PART = 512;           // tokens; divides by KEY_TILE
constexpr int64_t KEY_TILE = 128;       // divides by the lines of one step
constexpr int64_t AHEAD_BYTES = 12288;  // what decode fetches before it needs it
constexpr int64_t MOST_AHEAD = 128;     // lines
constexpr int64_t DECODE_LINES = 2 * KEY_TILE + MOST_AHEAD;
constexpr int64_t TILE_ROWS = 192;  // query rows times heads that share packed keys
constexpr int64_t BLOCK_ROWS = 12;  // of a tile, softened while they are in the first cache
// Floats of shared parts' states in a step, 128 MiB: 64 threads and a prompt of 16,000 tokens would
// take 294. A context beyond that is cut by KV heads only.
constexpr int64_t PARTIAL_FLOATS_MAX = 32 << 20;
constexpr float LOG2_E = 0x1.715476p+0f;

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Hands out a member's scratch.
class Floats {
 public:
  explicit Floats(float* next) : next_(next) {}

  template <typename T>
  T* take(int64_t count) {
    float* taken = next_;
    next_ += round_up(count * sizeof(T), 64) / sizeof(float);
    return reinterpret_cast<T*>(taken);
  }

 private:
  float* next_;
};

// Softmax over a part: the highest score (times log2 e), the sum of 2^(score - highest), and the
// values mixed by those weights.
struct State {
  float* highest;  // [rows]
  float* sum;      // [rows]
  float* mixed;    // [rows, pitch]

  static int64_t floats(int64_t rows, int64_t pitch) {
    return 2 * round_up(rows, LANES) + rows * pitch;
  }
  static State at(float* memory, int64_t rows) {
    return {memory, memory + round_up(rows, LANES), memory + 2 * round_up(rows, LANES)};
  }
  State from_row(int64_t row, int64_t pitch) const {
    return {highest + row, sum + row, mixed + row * pitch};
  }
};

}  // namespace tenora
