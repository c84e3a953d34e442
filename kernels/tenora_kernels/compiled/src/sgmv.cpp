#include "sgmv.h"

#include <algorithm>

#include "sgmv_tiles.h"

namespace tenora {
namespace {

constexpr int64_t SEGMENT_ROWS = 64;      // longer runs become several segments
constexpr int64_t LONG_ROWS = 6;          // from here on an expansion is bound by arithmetic
constexpr int64_t MAX_STRIP = 512;        // columns expanded at a time
constexpr int64_t ROWS_PER_READ = 16;     // rows that compute as long as their weights are read
constexpr int64_t TASKS_PER_MEMBER = 6;
constexpr int64_t TASK_ELEMENTS = 6 * 1024;  // at least
constexpr int DISTANCE = 2;               // blocks that we ask for memory ahead

using Part = Sgmv::Part;
using Side = Sgmv::Side;
using Start = Sgmv::Start;

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// A block's rows, and where it stands in its part.
template <typename T>
struct Block {
  const Part* part;
  int64_t first, count;    // rank rows; fewer than RANKS: the last is repeated
  int64_t column, length;  // of the matrix
  const T* rows[RANKS];
};

// The blocks of a task in order, each `DISTANCE` before it is used.
template <typename T, bool EXPAND>
class Blocks {
 public:
  Blocks(const T* pool, const Part* parts, Start from, Start to)
      : pool_(pool), parts_(parts), at_(from), to_(to) {
    enter();
    for (int i = 0; i < DISTANCE; ++i) fill(ring_[i]);
  }

  bool next() {
    ++now_;
    fill(ring_[(now_ + DISTANCE) % SIZE]);
    return current().part != nullptr;
  }
  const Block<T>& current() const { return ring_[now_ % SIZE]; }
  // What to ask for; the current block again at the end.
  const Block<T>& ahead() const {
    const Block<T>& block = ring_[(now_ + DISTANCE) % SIZE];
    return block.part ? block : current();
  }

 private:
  static constexpr int SIZE = DISTANCE + 1;
  const T* pool_;
  const Part* parts_;
  Start at_, to_;
  int64_t rank_row_ = 0, column_ = 0;
  int now_ = -1;
  Block<T> ring_[SIZE];

  static const Side& side(const Part& part) { return EXPAND ? part.b : part.a; }

  void enter() {
    if (EXPAND) {
      rank_row_ = 0;
      column_ = at_.unit * side(parts_[at_.part]).strip;
    } else {
      rank_row_ = at_.unit * RANKS;
    }
  }

  void fill(Block<T>& block) {
    if (at_.part == to_.part && at_.unit == to_.unit) {
      block.part = nullptr;
      return;
    }
    const Part& part = parts_[at_.part];
    const Side& read = side(part);
    block.part = &part;
    block.first = rank_row_;
    block.count = std::min<int64_t>(RANKS, part.rank - rank_row_);
    block.column = column_;
    block.length = std::min(read.strip, read.length - column_);
    const T* base = pool_ + read.offset + column_;
    const int64_t* granules = part.granules + rank_row_;
    if (block.count == RANKS)
      for (int j = 0; j < RANKS; ++j) block.rows[j] = base + granules[j];
    else
      for (int j = 0; j < RANKS; ++j)
        block.rows[j] = base + granules[std::min<int64_t>(j, block.count - 1)];
    rank_row_ += RANKS;
    if (EXPAND && rank_row_ < part.rank) return;
    if (++at_.unit == read.units) ++at_.part, at_.unit = 0, column_ = 0;
    if (at_.part != to_.part || at_.unit != to_.unit) enter();
  }
};

template <int ROWS, bool AHEAD, typename T, typename W>
inline void shrink_rows(const Block<W>& block, const Block<W>& ahead, const T* x,
                        int64_t x_stride, int64_t row) {
  const Part& part = *block.part;
  const T* rows[ROWS];
  for (int i = 0; i < ROWS; ++i) rows[i] = x + (part.row + row + i) * x_stride;
  float out[ROWS][RANKS];
  dot_tile<ROWS, AHEAD>(rows, block.rows, ahead.rows, block.length, out);
  for (int i = 0; i < ROWS; ++i) {
    float* h = part.h + (row + i) * part.h_stride + block.first;
    for (int j = 0; j < RANKS; ++j) h[j] = part.scale * row_scale(block.rows[j]) * out[i][j];
    for (int64_t j = block.count; j < RANKS; ++j) h[j] = 0;
  }
}

template <typename T, typename W>
void shrink_block(const Block<W>& block, const Block<W>& ahead, const T* x, int64_t x_stride) {
  const int64_t rows = block.part->rows;
  if (rows == 1) return shrink_rows<1, true>(block, ahead, x, x_stride, 0);
  if (rows == 2) return shrink_rows<2, true>(block, ahead, x, x_stride, 0);
  shrink_rows<3, true>(block, ahead, x, x_stride, 0);
  int64_t row = 3;
  for (; row + 3 <= rows; row += 3) shrink_rows<3, false>(block, ahead, x, x_stride, row);
  if (row + 2 == rows) shrink_rows<2, false>(block, ahead, x, x_stride, row);
  if (row + 1 == rows) shrink_rows<1, false>(block, ahead, x, x_stride, row);
}

// Few rows: totals in the first cache, blocks added as they come.
template <typename T, typename W>
void expand_block(const Block<W>& block, const Block<W>& ahead, float (*totals)[MAX_STRIP], T* y,
                  int64_t y_stride) {
  const Part& part = *block.part;
  for (int64_t row = 0; row < part.rows; ++row) {
    if (block.first == 0) std::fill_n(totals[row], MAX_STRIP, 0.0f);
    const float* from = part.h + row * part.h_stride + block.first;
    float h[RANKS];
    for (int j = 0; j < RANKS; ++j) h[j] = from[j] * row_scale(block.rows[j] - block.column);
    if (row == 0)
      add_tile<true>(h, block.rows, ahead.rows, block.length, totals[row]);
    else
      add_tile<false>(h, block.rows, ahead.rows, block.length, totals[row]);
    T* out = y + (part.row + row) * y_stride + part.column + block.column;
    if (block.first + block.count == part.rank)
      add_totals(out, totals[row], block.length, block.rows[0]);
  }
}

template <int ROWS, typename T>
inline void product_rows(const Part& part, const float* h, const float* b, int64_t width, T* y,
                         int64_t y_stride) {
  float out[ROWS][STRIP];
  product_tile<ROWS>(h, part.h_stride, part.rank, b, out);
  for (int i = 0; i < ROWS; ++i) add_to(y + i * y_stride, out[i], width);
}

// Many rows: STRIP columns of B at a time are made float32, then used by all rows. `scratch` holds
// [rank, STRIP] of B and, where its rows have scales, [rows, h_stride] of h with them.
template <typename T, typename W>
void expand_long(const Part& part, const W* pool, int64_t first, int64_t last, float* scratch,
                 T* y, int64_t y_stride) {
  const int64_t rank = part.rank, stride = part.h_stride;
  const float* h = part.h;
  if constexpr (sizeof(W) == 1) {
    float* scaled = scratch + rank * STRIP;
    for (int64_t r = 0; r < rank; ++r) {
      const float scale = row_scale(pool + part.granules[r] + part.b.offset);
      for (int64_t row = 0; row < part.rows; ++row)
        scaled[row * stride + r] = h[row * stride + r] * scale;
    }
    h = scaled;
  }
  for (int64_t column = first; column < last; column += STRIP) {
    const int64_t width = std::min<int64_t>(STRIP, last - column);
    for (int64_t r = 0; r < rank; ++r) {
      const W* from = pool + part.granules[r] + part.b.offset + column;
      for (int64_t c = 0; c < STRIP; c += LANES)
        store(scratch + r * STRIP + c,
              c + LANES <= width ? load(from + c)
                                 : load_part(from + c, std::max<int64_t>(width - c, 0)));
    }
    T* out = y + part.row * y_stride + part.column + column;
    int64_t row = 0;
    for (; row + 6 <= part.rows; row += 6)
      product_rows<6>(part, h + row * stride, scratch, width, out + row * y_stride, y_stride);
    for (; row + 2 <= part.rows; row += 2)
      product_rows<2>(part, h + row * stride, scratch, width, out + row * y_stride, y_stride);
    for (; row < part.rows; ++row)
      product_rows<1>(part, h + row * stride, scratch, width, out + row * y_stride, y_stride);
  }
}

// Cuts all units into tasks of about equal cost.
void cut(const std::vector<Part>& parts, Side Part::*side, int members,
         std::vector<Start>& starts) {
  int64_t total = 0;
  for (const Part& part : parts) total += (part.*side).units * (part.*side).unit_cost;
  const int64_t tasks = members == 1 ? 1 : members * TASKS_PER_MEMBER;
  const int64_t step = std::max(divide_up(total, tasks), TASK_ELEMENTS * ROWS_PER_READ);
  starts.clear();
  int64_t room = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const Side& read = parts[p].*side;
    for (int64_t unit = 0; unit < read.units;) {
      if (room <= 0) starts.push_back({static_cast<int64_t>(p), unit}), room = step;
      const int64_t take = std::min(read.units - unit, divide_up(room, read.unit_cost));
      room -= take * read.unit_cost;
      unit += take;
    }
  }
  starts.push_back({static_cast<int64_t>(parts.size()), 0});
}

void grow(std::unique_ptr<float[]>& floats, int64_t& size, int64_t wanted) {
  if (size >= wanted) return;
  floats.reset(new float[wanted]);  // memory is taken where it is first written
  size = wanted;
}

}  // namespace

void Sgmv::begin(const AdapterTable& table, const int32_t* row_slot, int64_t num_rows,
                 int members) {
  table_ = table;
  segments_.clear();
  int64_t rows = 0;
  for (int64_t row = 0; row < num_rows;) {
    const int32_t slot = row_slot[row];
    int64_t end = row + 1;
    while (end < num_rows && row_slot[end] == slot && end - row < SEGMENT_ROWS) ++end;
    if (slot >= 0) {
      segments_.push_back({static_cast<int32_t>(row), static_cast<int32_t>(end - row), slot});
      rows += end - row;
    }
    row = end;
  }
  const int64_t padded_rank = divide_up(table.max_rank, RANKS) * RANKS;
  grow(h_, h_floats_, rows * table.modules * padded_rank);
  if (plans_.size() < static_cast<size_t>(members)) plans_.resize(members);
  for (Plan& plan : plans_)
    grow(plan.scratch, plan.scratch_floats, padded_rank * (STRIP + SEGMENT_ROWS));
}

int64_t Sgmv::weight_bytes(const LoraLinear& linear, int64_t element_bytes) const {
  int64_t elements = 0;
  for (const Segment& segment : segments_)
    for (int64_t i = 0; i < linear.num_slices; ++i) {
      const Slice& slice = linear.slices[i];
      const int64_t entry =
          (segment.slot * table_.layers + linear.layer) * table_.modules + slice.module;
      elements += table_.rank[entry] * (linear.in_features + slice.width);
    }
  return elements * element_bytes;
}

void Sgmv::make_parts(Plan& plan, const LoraLinear& linear) {
  plan.parts.clear();
  float* h = h_.get();
  for (const Segment& segment : segments_) {
    const int64_t place = segment.slot * table_.layers + linear.layer;
    const int64_t weight = ROWS_PER_READ + segment.rows;
    for (int64_t i = 0; i < linear.num_slices; ++i) {
      const Slice& slice = linear.slices[i];
      const int64_t entry = place * table_.modules + slice.module;
      const int64_t rank = table_.rank[entry];
      if (rank == 0 || slice.width == 0) continue;
      const int64_t stride = divide_up(rank, RANKS) * RANKS;
      const int64_t strips = divide_up(slice.width, MAX_STRIP);
      const int64_t strip = divide_up(slice.width, strips * LANES * 2) * LANES * 2;
      plan.parts.push_back(
          {segment.row, segment.rows, rank, table_.granule_offset + place * table_.max_rank, h,
           stride, table_.scale[entry], slice.column,
           {table_.a_offset[entry], linear.in_features, linear.in_features, divide_up(rank, RANKS),
            std::min<int64_t>(RANKS, rank) * linear.in_features * weight},
           {table_.b_offset[entry], slice.width, strip, divide_up(slice.width, strip),
            rank * strip * weight}});
      h += segment.rows * stride;
    }
  }
}

template <typename T, typename W>
void Sgmv::shrink_from(Member& member, const T* x, int64_t x_stride) {
  const Plan& plan = plans_[member.index()];
  member.deal(plan.shrinks.size() - 1, [&](int64_t i) {
    Blocks<W, false> blocks(static_cast<const W*>(table_.pool), plan.parts.data(), plan.shrinks[i],
                            plan.shrinks[i + 1]);
    while (blocks.next()) shrink_block(blocks.current(), blocks.ahead(), x, x_stride);
  });
}

template <typename T, typename W>
void Sgmv::expand_from(Member& member, T* y, int64_t y_stride) {
  const Plan& plan = plans_[member.index()];
  const W* pool = static_cast<const W*>(table_.pool);
  member.deal(plan.expansions.size() - 1, [&](int64_t i) {
    alignas(64) float totals[LONG_ROWS - 1][MAX_STRIP];
    Blocks<W, true> blocks(pool, plan.parts.data(), plan.expansions[i], plan.expansions[i + 1]);
    while (blocks.next()) {
      const Block<W>& block = blocks.current();
      const Part& part = *block.part;
      if (part.rows < LONG_ROWS)
        expand_block(block, blocks.ahead(), totals, y, y_stride);
      else if (block.first == 0)
        expand_long(part, pool, block.column, block.column + block.length, plan.scratch.get(), y,
                    y_stride);
    }
  });
}

template <typename T>
void Sgmv::shrink(Member& member, const LoraLinear& linear, const T* x, int64_t x_stride) {
  if (empty()) return;
  Plan& plan = plans_[member.index()];
  make_parts(plan, linear);
  cut(plan.parts, &Part::a, member.size(), plan.shrinks);
  if (table_.int8)
    shrink_from<T, int8_t>(member, x, x_stride);
  else
    shrink_from<T, T>(member, x, x_stride);
}

template <typename T>
void Sgmv::expand(Member& member, const LoraLinear&, T* y, int64_t y_stride) {
  if (empty()) return;
  Plan& plan = plans_[member.index()];
  cut(plan.parts, &Part::b, member.size(), plan.expansions);
  if (table_.int8)
    expand_from<T, int8_t>(member, y, y_stride);
  else
    expand_from<T, T>(member, y, y_stride);
}

template void Sgmv::shrink<float>(Member&, const LoraLinear&, const float*, int64_t);
template void Sgmv::shrink<bf16>(Member&, const LoraLinear&, const bf16*, int64_t);
template void Sgmv::expand<float>(Member&, const LoraLinear&, float*, int64_t);
template void Sgmv::expand<bf16>(Member&, const LoraLinear&, bf16*, int64_t);

}  // namespace tenora
