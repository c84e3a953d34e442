#include "sgmv.h"

#include <algorithm>

#include "sgmv_expansion.h"

namespace tenora {
namespace {

constexpr int64_t SEGMENT_ROWS = 64;      // longer runs become several segments
constexpr int64_t LONG_ROWS = 6;          // from here on an expansion is bound by arithmetic
constexpr int64_t MAX_STRIP = 1536;       // columns expanded at a time
constexpr int64_t LONG_STRIP = 128;       // likewise, by many rows
constexpr int64_t ROWS_PER_READ = 16;     // rows that compute as long as their weights are read
constexpr int64_t TASK_ELEMENTS = 6 * 1024;  // at least

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

// The blocks of one member's tasks in order, each known `DISTANCE` before it is used: a task is
// taken while the last blocks of the one before are at work, so that memory is never idle.
template <typename T, bool EXPAND>
class Blocks {
 public:
  Blocks(const T* pool, const Part* parts, const std::vector<Start>& starts, Member::Tasks tasks)
      : pool_(pool), parts_(parts), starts_(starts.data()), tasks_(tasks) {
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
  static constexpr int DISTANCE = 2;  // blocks that we ask for memory ahead
  static constexpr int SIZE = DISTANCE + 1;
  const T* pool_;
  const Part* parts_;
  const Start* starts_;
  Member::Tasks tasks_;
  Start at_{}, to_{};
  int64_t rank_row_ = 0, column_ = 0;
  int now_ = -1;
  Block<T> ring_[SIZE];

  static const Side& side(const Part& part) { return EXPAND ? part.b : part.a; }

  void enter() {
    if (at_.part < to_.part - 1) {  // the next part's places, too, come from memory
      const Part& next = parts_[at_.part + 1];
      for (int64_t r = 0; r < next.rank; r += RANKS) prefetch(next.granules + r);
    }
    if (EXPAND) {
      rank_row_ = 0;
      column_ = at_.unit * side(parts_[at_.part]).strip;
    } else {
      rank_row_ = at_.unit * RANKS;
    }
  }

  bool task_is_done() const { return at_.part == to_.part && at_.unit == to_.unit; }

  void fill(Block<T>& block) {
    if (task_is_done()) {
      const int64_t task = tasks_.take();
      if (task < 0) {
        block.part = nullptr;
        return;
      }
      at_ = starts_[task], to_ = starts_[task + 1];
      enter();
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
    if (!task_is_done()) enter();
  }
};

template <int ROWS, typename T, typename W>
inline void shrink_rows(const Block<W>& block, const Block<W>& next, const T* x,
                        int64_t x_stride, int64_t row) {
  const Part& part = *block.part;
  const T* rows[ROWS];
  for (int i = 0; i < ROWS; ++i) rows[i] = x + (part.row + row + i) * x_stride;
  float out[ROWS][RANKS];
  const int first = RANKS * row / part.rows, last = RANKS * (row + ROWS) / part.rows;
  const Ahead<W> ahead{next.rows, first, last};
  dot_tile<ROWS>(rows, block.rows, ahead, block.length, out);
  for (int i = 0; i < ROWS; ++i) {
    float* h = part.h + (row + i) * part.h_stride + block.first;
    for (int j = 0; j < RANKS; ++j) h[j] = part.scale * row_scale(block.rows[j]) * out[i][j];
    for (int64_t j = block.count; j < RANKS; ++j) h[j] = 0;
  }
}

// Tiles of three rows, at the end of two: one alone would wait for its own sums.
template <typename T, typename W>
void shrink_block(const Block<W>& block, const Block<W>& next, const T* x, int64_t x_stride) {
  const int64_t rows = block.part->rows;
  if (rows == 1) return shrink_rows<1>(block, next, x, x_stride, 0);
  int64_t row = 0;
  for (; rows - row == 3 || rows - row > 4; row += 3)
    shrink_rows<3>(block, next, x, x_stride, row);
  for (; row < rows; row += 2) shrink_rows<2>(block, next, x, x_stride, row);
}

// Few rows: totals in the first cache, blocks added as they come.
template <typename T, typename W>
void expand_block(const Block<W>& block, const Block<W>& ahead, float (*totals)[MAX_STRIP], T* y,
                  int64_t y_stride) {
  const Part& part = *block.part;
  for (int64_t row = 0; row < part.rows; ++row) {
    T* to = y + (part.row + row) * y_stride + part.column + block.column;
    if (block.first == 0) {
      std::fill_n(totals[row], divide_up(block.length, Step<T>::COLUMNS) * Step<T>::COLUMNS, 0.0f);
      for (int64_t c = 0; c < block.length; c += 64 / sizeof(T)) prefetch(to + c);
    }
    typename Step<T>::Factor factors[RANKS / Step<T>::ROWS];
    block_factors<T>(part.h + row * part.h_stride + block.first, block.rows, block.column, factors);
    if (row == 0)
      add_tile<T, true>(factors, block.rows, ahead.rows, block.length, totals[row]);
    else
      add_tile<T, false>(factors, block.rows, ahead.rows, block.length, totals[row]);
    if (block.first + block.count == part.rank)
      add_totals(to, totals[row], block.length);
  }
}

// Many rows: the blocks of a strip are laid out one after another, then used by all rows.
template <typename T>
class LongExpansion {
 public:
  explicit LongExpansion(Lanes* scratch) : scratch_(scratch) {}

  template <typename W>
  void expand(const Block<W>& block, const Block<W>& ahead, T* y, int64_t y_stride) {
    const Part& part = *block.part;
    if (block.first == 0) enter(part);
    const int64_t done = block.first / S::ROWS;
    if (is_new_)
      for (int64_t row = 0; row < part.rows; ++row)
        block_factors<T>(part.h + row * part.h_stride + block.first, block.rows, block.column,
                         factors_ + row * steps_ + done);
    for (int64_t c = 0; c < block.length; c += STRIP)
      lay_out<T>(block.rows, ahead.rows, c, std::min<int64_t>(STRIP, block.length - c),
                 weights_ + (c / STRIP * steps_ + done) * VECTORS);
    if (block.first + block.count < part.rank) return;
    for (int64_t c = 0; c < block.length; c += STRIP)
      add_strip(part, weights_ + c / STRIP * steps_ * VECTORS,
                std::min<int64_t>(STRIP, block.length - c),
                y + part.row * y_stride + part.column + block.column + c, y_stride);
  }

 private:
  using S = Step<T>;
  static constexpr int64_t VECTORS = STRIP / LANES;

  Lanes* scratch_;
  const Part* part_ = nullptr;  // whose factors are kept
  bool is_new_ = false;
  int64_t steps_ = 0;
  typename S::Factor* factors_ = nullptr;   // [rows, steps]
  typename S::Weights* weights_ = nullptr;  // [strips, steps, VECTORS]

  void enter(const Part& part) {
    is_new_ = part_ != &part;
    part_ = &part;
    steps_ = part.h_stride / S::ROWS;
    factors_ = reinterpret_cast<typename S::Factor*>(scratch_);
    Lanes* behind = scratch_ + divide_up(part.rows * steps_, LANES);
    weights_ = reinterpret_cast<typename S::Weights*>(behind);
  }

  void add_strip(const Part& part, const typename S::Weights* strip, int64_t width, T* out,
                 int64_t y_stride) {
    const auto add = [&](auto rows, int64_t row) {
      add_product<decltype(rows)::value, T>(factors_ + row * steps_, steps_, strip, width,
                                            out + row * y_stride, y_stride);
    };
    int64_t row = 0;
    for (; row + 5 < part.rows; row += 6) add(std::integral_constant<int, 6>(), row);
    for (; row + 1 < part.rows; row += 2) add(std::integral_constant<int, 2>(), row);
    if (row < part.rows) add(std::integral_constant<int, 1>(), row);
  }
};

// Cuts all units into tasks, each half a member's part of what is left, so that all members end
// together (guided self-scheduling: Polychronopoulos and Kuck, 1987).
void cut(const std::vector<Part>& parts, Side Part::*side, int members,
         std::vector<Start>& starts) {
  int64_t left = 0, room = 0;
  for (const Part& part : parts) left += (part.*side).units * (part.*side).unit_cost;
  const int64_t least = std::min(TASK_ELEMENTS * ROWS_PER_READ, divide_up(left, members));
  starts.clear();
  for (size_t p = 0; p < parts.size(); ++p) {
    const Side& read = parts[p].*side;
    for (int64_t unit = 0; unit < read.units;) {
      if (room <= 0) {
        starts.push_back({static_cast<int64_t>(p), unit});
        const int64_t part_of_left = members == 1 ? left : divide_up(left, 2 * members);
        room = std::max(part_of_left, least);
      }
      const int64_t take = std::min(read.units - unit, divide_up(room, read.unit_cost));
      room -= take * read.unit_cost;
      left -= take * read.unit_cost;
      unit += take;
    }
  }
  starts.push_back({static_cast<int64_t>(parts.size()), 0});
}

template <typename Item>
void grow(std::unique_ptr<Item[]>& items, int64_t& size, int64_t wanted) {
  if (size >= wanted) return;
  items.reset(new Item[wanted]);  // memory is taken where it is first written
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
    grow(plan.scratch, plan.scratch_size, padded_rank * (LONG_STRIP + SEGMENT_ROWS) / LANES + 1);
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

void Sgmv::make_parts(Plan& plan, const LoraLinear& linear, int members) {
  plan.parts.clear();
  int64_t columns = 0;
  for (int64_t i = 0; i < linear.num_slices; ++i) columns += linear.slices[i].width;
  columns *= static_cast<int64_t>(segments_.size());
  // Strips so narrow that few adapters are work for all members.
  const int64_t most = std::clamp<int64_t>(columns / (4 * members), 2 * STRIP, MAX_STRIP);
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
      const int64_t strips =
          divide_up(slice.width, segment.rows < LONG_ROWS ? most : std::min(most, LONG_STRIP));
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
  Blocks<W, false> blocks(static_cast<const W*>(table_.pool), plan.parts.data(), plan.shrinks,
                          member.share_out(plan.shrinks.size() - 1));
  while (blocks.next()) shrink_block(blocks.current(), blocks.ahead(), x, x_stride);
}

template <typename T, typename W>
void Sgmv::expand_from(Member& member, T* y, int64_t y_stride) {
  const Plan& plan = plans_[member.index()];
  alignas(64) float totals[LONG_ROWS - 1][MAX_STRIP];
  LongExpansion<T> many_rows(plan.scratch.get());
  Blocks<W, true> blocks(static_cast<const W*>(table_.pool), plan.parts.data(), plan.expansions,
                         member.share_out(plan.expansions.size() - 1));
  while (blocks.next()) {
    const Block<W>& block = blocks.current();
    if (block.part->rows < LONG_ROWS)
      expand_block(block, blocks.ahead(), totals, y, y_stride);
    else
      many_rows.expand(block, blocks.ahead(), y, y_stride);
  }
}

template <typename T>
void Sgmv::shrink(Member& member, const LoraLinear& linear, const T* x, int64_t x_stride) {
  if (empty()) return;
  Plan& plan = plans_[member.index()];
  make_parts(plan, linear, member.size());
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
