// Register tiles of rows x panels. With few rows the product waits for memory: every weight is read
// once, asked for one tile ahead. With many rows a block of them stays in the cache while all
// panels pass by. Each sum runs over its terms in one order, whatever else is in the batch.

#include "gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tenora {
namespace {

// Rows x panels of a tile: at most 24 accumulators of 32 registers. Measured on Zen 5.
constexpr int FEW_ROWS = 4;              // up to here one tile takes all rows of four panels
constexpr int MEDIUM_ROWS = 24;          // up to here two panels, twelve rows; above four and six
constexpr int64_t BLOCK_BYTES = 256 * 1024;  // of x, to stay in a core's cache
constexpr int64_t CHUNK_PANELS = 4;          // dealt at once

template <typename T>
constexpr int64_t STEP = sizeof(T) == 2 ? 2 : 1;  // inputs that one lane takes at once

// What a lane takes of x, for all lanes.
inline Lanes spread(const float* x) { return Lanes{} + x[0]; }
inline Bits spread(const bf16* x) {
  uint32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return Bits{} + pair;
}

inline Lanes load_step(const float* weights) { return load(weights); }
inline Bits load_step(const bf16* weights) {
  Bits pairs;
  std::memcpy(&pairs, weights, sizeof(pairs));
  return pairs;
}

inline void accumulate(Lanes& sum, Lanes x, Lanes weights) { sum += x * weights; }
inline void accumulate(Lanes& sum, Bits x, Bits weights) {
#ifdef TENORA_BF16_DOT
  sum = (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)weights);
#else
  sum += (Lanes)(x << 16) * (Lanes)(weights << 16);
  sum += (Lanes)(x & 0xffff0000u) * (Lanes)(weights & 0xffff0000u);
#endif
}

// Where a product reads and writes.
template <typename T>
struct Call {
  const T* x;
  int64_t x_stride;
  const PackedWeight<T>& weight;
  T* y;
  int64_t y_stride;
  bool add;

  const T* panel(int64_t number) const { return weight.packed + number * weight.in * PANEL; }
};

template <typename T>
void finish(const Call<T>& call, Lanes sum, int64_t row, int64_t column) {
  const int64_t left = call.weight.out - column;
  T* y = call.y + row * call.y_stride + column;
  if (left >= LANES) {
    if (call.weight.bias) sum += load(call.weight.bias + column);
    if (call.add) sum += load(y);
    store(y, sum);
  } else {
    if (call.weight.bias) sum += load_part(call.weight.bias + column, left);
    if (call.add) sum += load_part(y, left);
    store_part(y, sum, left);
  }
}

// ROWS rows from `row` on with PANELS panels from `panel` on. `ahead`, if any, is asked for: as
// many panels, to be read next.
template <int ROWS, int PANELS, typename T>
void tile(const Call<T>& call, int64_t row, int64_t panel, const T* ahead) {
  Lanes sums[ROWS][PANELS];
#pragma GCC unroll 12
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < PANELS; ++j) sums[i][j] = Lanes{};
  const int64_t in = call.weight.in, panel_elements = in * PANEL;
  const T* x = call.x + row * call.x_stride;
  const T* weights = call.panel(panel);
  for (int64_t k = 0; k < in; k += STEP<T>) {
    decltype(load_step(weights)) steps[PANELS];
#pragma GCC unroll 4
    for (int j = 0; j < PANELS; ++j) {
      steps[j] = load_step(weights + j * panel_elements + k * PANEL);
      if (ahead) prefetch(ahead + j * panel_elements + k * PANEL);
    }
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; ++i) {
      const auto inputs = spread(x + i * call.x_stride + k);
#pragma GCC unroll 4
      for (int j = 0; j < PANELS; ++j) accumulate(sums[i][j], inputs, steps[j]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < PANELS; ++j) finish(call, sums[i][j], row + i, (panel + j) * PANEL);
}

template <typename T>
using Tile = void (*)(const Call<T>&, int64_t row, int64_t panel, const T* ahead);

// The tiles of 1..sizeof...(ROWS) rows.
template <int PANELS, typename T, int... ROWS>
Tile<T> choose(int64_t rows, std::integer_sequence<int, ROWS...>) {
  static constexpr Tile<T> tiles[] = {tile<ROWS + 1, PANELS, T>...};
  return tiles[rows - 1];
}

// All rows `first..last` with the panels of one chunk, the rows in tiles of equal height.
template <int MOST_ROWS, int PANELS, typename T>
void chunk_of_rows(const Call<T>& call, int64_t first, int64_t last, int64_t panel, int64_t end) {
  const auto heights = std::make_integer_sequence<int, MOST_ROWS>();
  const int64_t tiles = (last - first + MOST_ROWS - 1) / MOST_ROWS;
  while (panel < end) {
    const bool wide = panel + PANELS <= end;
    const int64_t next = panel + (wide ? PANELS : 1);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = first + (last - first) * i / tiles;
      const int64_t rows = first + (last - first) * (i + 1) / tiles - row;
      const T* ahead = i + 1 == tiles ? call.panel(next) : nullptr;  // others find it in the cache
      const Tile<T> run = wide ? choose<PANELS, T>(rows, heights) : choose<1, T>(rows, heights);
      run(call, row, panel, ahead);
    }
    panel = next;
  }
}

}  // namespace

template <typename T>
void multiply(Member& member, const T* x, int64_t x_stride, int64_t rows,
              const PackedWeight<T>& weight, T* y, int64_t y_stride, bool add) {
  const Call<T> call{x, x_stride, weight, y, y_stride, add};
  const int64_t panels = panels_of(weight.out);
  const int64_t chunks = (panels + CHUNK_PANELS - 1) / CHUNK_PANELS;
  const int64_t most = std::max<int64_t>(24, BLOCK_BYTES / (weight.in * int64_t(sizeof(T))));
  const int64_t blocks = (rows + most - 1) / most;
  member.deal(blocks * chunks, [&](int64_t task) {
    const int64_t block = task / chunks;
    const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
    const int64_t panel = task % chunks * CHUNK_PANELS;
    const int64_t end = std::min(panels, panel + CHUNK_PANELS);
    if (last - first <= FEW_ROWS)
      chunk_of_rows<FEW_ROWS, 4>(call, first, last, panel, end);
    else if (last - first <= MEDIUM_ROWS)
      chunk_of_rows<12, 2>(call, first, last, panel, end);
    else
      chunk_of_rows<6, 4>(call, first, last, panel, end);
  });
}

template <typename T>
void pack_weight(const T* weight, int64_t out, int64_t in, T* packed) {
  std::memset(packed, 0, packed_elements(out, in) * sizeof(T));
  for (int64_t row = 0; row < out; ++row) {
    T* panel = packed + row / PANEL * PANEL * in + row % PANEL * STEP<T>;
    for (int64_t k = 0; k < in; k += STEP<T>)
      std::memcpy(panel + k * PANEL, weight + row * in + k, STEP<T> * sizeof(T));
  }
}

template <typename T>
void unpack_row(const T* packed, int64_t in, int64_t row, T* weights) {
  const T* panel = packed + row / PANEL * PANEL * in + row % PANEL * STEP<T>;
  for (int64_t k = 0; k < in; k += STEP<T>)
    std::memcpy(weights + k, panel + k * PANEL, STEP<T> * sizeof(T));
}

template void multiply(Member&, const float*, int64_t, int64_t, const PackedWeight<float>&, float*,
                       int64_t, bool);
template void multiply(Member&, const bf16*, int64_t, int64_t, const PackedWeight<bf16>&, bf16*,
                       int64_t, bool);
template void pack_weight(const float*, int64_t, int64_t, float*);
template void pack_weight(const bf16*, int64_t, int64_t, bf16*);
template void unpack_row(const float*, int64_t, int64_t, float*);
template void unpack_row(const bf16*, int64_t, int64_t, bf16*);

}  // namespace tenora
