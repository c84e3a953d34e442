// Register tiles of rows x panels. With few rows the product waits for memory: every weight is read
// once, asked for before its turn. With many rows a block of them stays in the cache while all
// panels pass by. Each sum runs over its terms in one order, whatever else is in the batch.
//
// Where no instruction multiplies bfloat16, each member widens a block's rows to float32 once, for
// all panels: taking x apart within the tile cost a third of its time.

#include "gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace tenora {
namespace {

constexpr int HALVES = PANEL / LANES;  // registers of a panel's step
constexpr int TILE_ROWS = 12;          // at most: 24 accumulators of 32 registers
constexpr int64_t BLOCK_BYTES = 256 * 1024;  // of x, to stay in a core's cache
constexpr int64_t FETCH_BYTES = 6144;        // from what is used to what is asked for

// Whether an instruction multiplies numbers of T.
#ifdef TENORA_BF16_DOT
template <typename T>
constexpr bool MULTIPLIES = true;
#else
template <typename T>
constexpr bool MULTIPLIES = sizeof(T) == sizeof(float);
#endif

// What a product of T with packed weights of T is made of.
template <typename T>
struct Plain {
  using Output = T;
  using Input = T;
  using Element = T;
  using Sum = Lanes;
  static constexpr int64_t STEP = STEP_OF<T>;
};

// Of bfloat16 weights with inputs that were widened to float32.
struct Widened {
  using Output = bf16;
  using Input = float;
  using Element = bf16;
  using Sum = Lanes;
  static constexpr int64_t STEP = STEP_OF<bf16>;
};

// And of inputs of 8 bits with weights of 8 bits.
template <typename T>
struct Quantised {
  using Output = T;
  using Input = int8_t;
  using Element = uint8_t;
  using Sum = Counts;
  static constexpr int64_t STEP = INT8_STEP;
};

// Two neighbours of a row, or of a lane's weights.
struct Pair {
  Lanes first, second;
};

// Of whole numbers: a 0 that is added to a float turns -0 to 0, and so costs an instruction.
inline Lanes repeated(const float* x) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof(bits));
  return (Lanes)(Bits{} + bits);
}

// What a lane takes of x, for all lanes.
template <typename Kind>
inline auto spread(const typename Kind::Input* x) {
  if constexpr (std::is_same_v<Kind, Widened>) {
    return Pair{repeated(x), repeated(x + 1)};
  } else if constexpr (std::is_same_v<Kind, Plain<float>>) {
    return repeated(x);
  } else {
    uint32_t together;
    std::memcpy(&together, x, sizeof(together));
    return Bits{} + together;
  }
}

template <typename Kind>
inline auto load_step(const typename Kind::Element* weights) {
  if constexpr (std::is_same_v<Kind, Plain<float>>) {
    return load(weights);
  } else {
    Bits together;
    std::memcpy(&together, weights, sizeof(together));
    if constexpr (std::is_same_v<Kind, Widened>)
      return Pair{(Lanes)(together << 16), (Lanes)(together & 0xffff0000u)};
    else
      return together;
  }
}

inline void accumulate(Lanes& sum, Lanes x, Lanes weights) { sum += x * weights; }

inline void accumulate(Lanes& sum, const Pair& x, const Pair& weights) {
  sum += x.first * weights.first;
  sum += x.second * weights.second;
}

#ifdef TENORA_BF16_DOT
inline void accumulate(Lanes& sum, Bits x, Bits weights) {
  sum = (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)weights);
}
#endif

inline void accumulate(Counts& sum, Bits x, Bits weights) {
#ifdef TENORA_INT8_DOT
  sum = (Counts)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)x);
#else
  for (int shift = 0; shift < 32; shift += 8)
    sum += (Counts)(weights >> shift & 0xff) * ((Counts)(x << (24 - shift)) >> 24);
#endif
}

// Where a product reads and writes.
template <typename Kind>
struct Call {
  using T = typename Kind::Output;
  using Input = typename Kind::Input;
  using Element = typename Kind::Element;

  const PackedWeight<T>& weight;
  const Element* packed;
  const Input* x;  // from row `first_row` on
  int64_t x_stride;
  int64_t first_row;
  const float* x_scales;     // [rows, groups], where quantised
  const int32_t* x_offsets;  // likewise
  T* y;
  int64_t y_stride;
  bool add;

  const Element* panel(int64_t number) const { return packed + number * weight.in * PANEL; }
  const Input* row(int64_t number) const { return x + (number - first_row) * x_stride; }
};

template <typename Kind>
void finish(const Call<Kind>& call, Lanes sum, int64_t row, int64_t column) {
  if (call.weight.scales) sum *= load(call.weight.scales + column);
  const int64_t left = call.weight.out - column;
  if (left <= 0) return;
  typename Kind::Output* y = call.y + row * call.y_stride + column;
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

// What a tile asks for while it works. The only one to read its panel, or the first of a phase:
// what lies FETCH_BYTES on, in it or at the beginning of the next panel. Where several tiles read a
// panel, the first two ask for half of the next one each, so that memory is busy all the time.
template <typename Kind>
struct Ahead {
  bool own;
  const typename Kind::Element* beyond;  // the next panel less a panel's length
  const typename Kind::Element* half;    // of the next panel; null: nothing
};

// Asks for what a tile will write: with many rows it lies in no cache, and stores wait one by one.
template <int ROWS, typename Kind>
inline void prefetch_results(const Call<Kind>& call, int64_t row, int64_t panel) {
  for (int i = 0; i < ROWS; ++i)
    __builtin_prefetch(call.y + (row + i) * call.y_stride + panel * PANEL, 1);
}

// Adds the products of inputs `from`..`end` - 1.
template <int ROWS, typename Kind>
inline __attribute__((always_inline)) void add_products(
    const Call<Kind>& call, const typename Kind::Input* x, const typename Kind::Element* panel,
    Ahead<Kind> ahead, int64_t from, int64_t end, typename Kind::Sum (&sums)[ROWS][HALVES]) {
  constexpr int64_t DISTANCE = FETCH_BYTES / sizeof(typename Kind::Element);
  const int64_t turn = call.weight.in - DISTANCE / PANEL;
  for (int64_t k = from; k < end; k += Kind::STEP) {
    decltype(load_step<Kind>(panel)) weights[HALVES];
#pragma GCC unroll 2
    for (int j = 0; j < HALVES; ++j) {
      const int64_t step = k * PANEL + j * (LANES * Kind::STEP);
      weights[j] = load_step<Kind>(panel + step);
      if (ahead.own) prefetch_far((k < turn ? panel : ahead.beyond) + step + DISTANCE);
    }
    if (ahead.half) prefetch_far(ahead.half + k * LANES);
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; ++i) {
      const auto inputs = spread<Kind>(x + i * call.x_stride + k);
#pragma GCC unroll 2
      for (int j = 0; j < HALVES; ++j) accumulate(sums[i][j], inputs, weights[j]);
    }
  }
}

// ROWS rows from `row` on with one panel.
template <int ROWS, typename Kind>
  requires std::is_same_v<typename Kind::Sum, Lanes>
void tile(const Call<Kind>& call, int64_t row, int64_t panel, Ahead<Kind> ahead) {
  prefetch_results<ROWS>(call, row, panel);
  Lanes sums[ROWS][HALVES];
#pragma GCC unroll 12
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < HALVES; ++j) sums[i][j] = Lanes{};
  add_products<ROWS>(call, call.row(row), call.panel(panel), ahead, 0, call.weight.in, sums);
#pragma GCC unroll 12
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < HALVES; ++j) finish(call, sums[i][j], row + i, panel * PANEL + j * LANES);
}

// Whole numbers are summed within a group of inputs, which shares a scale, floats beyond it.
template <int ROWS, typename Kind>
  requires std::is_same_v<typename Kind::Sum, Counts>
void tile(const Call<Kind>& call, int64_t row, int64_t panel, Ahead<Kind> ahead) {
  prefetch_results<ROWS>(call, row, panel);
  Lanes totals[ROWS][HALVES] = {};
  const int64_t in = call.weight.in, groups = groups_of(in);
  const float* scales = call.x_scales + row * groups;
  const int32_t* offsets = call.x_offsets + row * groups;
  for (int64_t group = 0; group < groups; ++group) {
    Counts sums[ROWS][HALVES];
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < HALVES; ++j) sums[i][j] = Counts{} - offsets[i * groups + group];
    add_products<ROWS>(call, call.row(row), call.panel(panel), ahead, group * GROUP,
                       std::min(in, (group + 1) * GROUP), sums);
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < HALVES; ++j)
        totals[i][j] += __builtin_convertvector(sums[i][j], Lanes) * scales[i * groups + group];
  }
#pragma GCC unroll 12
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < HALVES; ++j) finish(call, totals[i][j], row + i, panel * PANEL + j * LANES);
}

template <typename Kind>
using Tile = void (*)(const Call<Kind>&, int64_t row, int64_t panel, Ahead<Kind> ahead);

// The tile of 1..sizeof...(ROWS) rows.
template <typename Kind, int... ROWS>
Tile<Kind> tile_of(int64_t rows, std::integer_sequence<int, ROWS...>) {
  static constexpr Tile<Kind> tiles[] = {tile<ROWS + 1>...};
  return tiles[rows - 1];
}

// Rows `first`..`last` - 1 with a panel, in tiles of equal height. `next` is the panel that this
// member reads after it, itself where there is none; `asked`: this one has been a next one.
template <typename Kind>
void rows_by_panel(const Call<Kind>& call, int64_t first, int64_t last, int64_t panel,
                   int64_t next, bool asked) {
  const int64_t tiles = (last - first + TILE_ROWS - 1) / TILE_ROWS, in = call.weight.in;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t row = first + (last - first) * i / tiles;
    const int64_t rows = first + (last - first) * (i + 1) / tiles - row;
    Ahead<Kind> ahead{tiles == 1 || (i == 0 && !asked), call.panel(next - 1), nullptr};
    if (tiles > 1 && i < HALVES && next != panel) ahead.half = call.panel(next) + i * LANES * in;
    const Tile<Kind> run = tile_of<Kind>(rows, std::make_integer_sequence<int, TILE_ROWS>());
    run(call, row, panel, ahead);
  }
}

// Blocks of rows, each by all panels. A member takes its next run before the last panel of the one
// before, to ask for its memory in time. `enter(call, first row, last row)` readies a block's inputs.
template <typename Kind, typename Enter>
void deal_product(Member& member, Call<Kind> call, int64_t rows, Enter&& enter) {
  const int64_t panels = panels_of(call.weight.out);
  const int64_t row_bytes = call.weight.in * sizeof(typename Kind::Input);
  const int64_t most = std::max<int64_t>(TILE_ROWS, BLOCK_BYTES / row_bytes);
  const int64_t blocks = (rows + most - 1) / most;
  Member::Runs runs = member.share_out_runs(blocks * panels);
  Member::Runs::Run run = runs.take();
  bool asked = false;
  int64_t entered = -1;
  for (int64_t unit = run.first, next; !run.empty(); unit = next, asked = true) {
    const int64_t block = unit / panels;
    const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
    if (block != entered) enter(call, first, last);
    entered = block;
    next = unit + 1;
    if (next == run.end) {
      run = runs.take();
      next = run.first;
    }
    const int64_t panel = unit % panels;
    rows_by_panel(call, first, last, panel, run.empty() ? panel : next % panels, asked);
  }
}

void deal_widened(Member& member, const RowsOf<bf16>& x, Call<Widened> call) {
  thread_local std::vector<float> wide;
  deal_product(member, call, x.rows, [&](Call<Widened>& now, int64_t first, int64_t last) {
    const int64_t in = now.weight.in;
    wide.resize(std::max<size_t>(wide.size(), (last - first) * in));
    for (int64_t row = first; row < last; ++row)
      by_lanes(x.data + row * x.stride, in, [&](Lanes lanes, int64_t i, int64_t count) {
        store_up_to(wide.data() + (row - first) * in + i, lanes, count);
      });
    now.x = wide.data();
    now.first_row = first;
  });
}

}  // namespace

template <typename T>
void multiply(Member& member, const RowsOf<T>& x, const PackedWeight<T>& weight, T* y,
              int64_t y_stride, bool add) {
  const auto as_they_are = [](auto&, int64_t, int64_t) {};
  const int64_t in = weight.in;
  if (weight.scales) {
    deal_product(member,
                 Call<Quantised<T>>{weight, static_cast<const uint8_t*>(weight.packed),
                                    x.quantised, in, 0, x.scales, x.offsets, y, y_stride, add},
                 x.rows, as_they_are);
    return;
  }
  const T* packed = static_cast<const T*>(weight.packed);
  if constexpr (MULTIPLIES<T>)
    deal_product(member,
                 Call<Plain<T>>{weight, packed, x.data, x.stride, 0, nullptr, nullptr, y, y_stride,
                                add},
                 x.rows, as_they_are);
  else
    deal_widened(member, x,
                 {weight, packed, nullptr, in, 0, nullptr, nullptr, y, y_stride, add});
}

template void multiply(Member&, const RowsOf<float>&, const PackedWeight<float>&, float*, int64_t,
                       bool);
template void multiply(Member&, const RowsOf<bf16>&, const PackedWeight<bf16>&, bf16*, int64_t,
                       bool);

}  // namespace tenora
