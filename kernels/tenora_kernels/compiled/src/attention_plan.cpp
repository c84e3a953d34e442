#include <stdexcept>

#include "attention_state.h"

namespace tenora {

namespace {

constexpr float TASKS_PER_THREAD = 4;
// Below this a task is not worth a thread's attention: about 2 us.
constexpr float LEAST_COST = 2000;

// Of the queries of one item over `keys` keys of `heads` KV heads. Reading a key and its value is
// worth about eight query rows.
float cost_of(int64_t keys, int64_t heads, int64_t rows) {
  return static_cast<float>(keys) * heads * (8 + rows);
}

int64_t decode_scratch(const AttentionShape& shape, int64_t pitch) {
  const int64_t rows = round_up(shape.heads, 4);
  return DECODE_LINES * 2 + 2 * rows * KEY_TILE + 3 * rows + rows * pitch +
         2 * State::floats(shape.heads, pitch);
}

int64_t prefill_scratch(const AttentionShape& shape, int64_t pitch) {
  const int64_t rows = round_up(std::max(TILE_ROWS, shape.heads / shape.kv_heads), LANES);
  return KEY_TILE * 2 + rows * pitch + 2 * BLOCK_ROWS * KEY_TILE + 2 * KEY_TILE * pitch +
         2 * State::floats(rows, pitch);
}

int64_t pitch_of(const AttentionShape& shape) { return round_up(shape.head_dim, 2 * LANES); }

// A member's, each piece beginning a cache line.
int64_t scratch_of(const AttentionShape& shape, bool is_decode) {
  const int64_t pitch = pitch_of(shape);
  const int64_t floats = is_decode ? decode_scratch(shape, pitch) : prefill_scratch(shape, pitch);
  return round_up(floats + 256, LANES);
}

int64_t most_queries(const AttentionShape& shape) {  // of an item
  return std::max<int64_t>(1, TILE_ROWS / (shape.heads / shape.kv_heads));
}

int64_t parts_of(int64_t keys) { return (keys + PART - 1) / PART; }

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

}  // namespace

void AttentionPlan::make(const AttentionBatch& batch, const AttentionShape& shape, int threads) {
  require(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0 &&
              shape.head_dim > 0 && shape.block_tokens > 0,
          "heads, head_dim or block_tokens");
  shape_ = shape;
  threads_ = std::max(threads, 1);
  pitch_ = pitch_of(shape);
  partial_left_ = PARTIAL_FLOATS_MAX;
  items_.clear();
  tasks_.clear();
  combines_.clear();
  add_items(batch);
  float total = 0;
  for (const AttentionItem& item : items_)
    total += cost_of(item.keys, shape.kv_heads, item.queries * group());
  const float target = std::max(LEAST_COST, total / (threads_ * TASKS_PER_THREAD));
  for (size_t i = 0; i < items_.size(); ++i) cut(i, threads_ == 1 ? total : target);
  std::sort(tasks_.begin(), tasks_.end(), [](const AttentionTask& one, const AttentionTask& other) {
    return one.cost > other.cost;
  });
  int64_t partial_floats = 0;
  for (const AttentionTask& task : combines_) {
    if (task.first_head != 0) continue;
    AttentionItem& item = items_[task.item];
    item.partial = partial_floats;
    partial_floats += item.parts * State::floats(shape.heads * item.queries, pitch_);
  }
  reserve(partial_floats);
}

int AttentionPlan::useful_threads() const {
  return std::max<int>(1, std::min<int64_t>(threads_, tasks_.size()));
}

void AttentionPlan::add_items(const AttentionBatch& batch) {
  const int64_t most = most_queries(shape_);
  for (int64_t i = 0; i < batch.num_seqs; ++i) {
    const int64_t first = batch.query_start[i];
    const int64_t queries = batch.query_start[i + 1] - first;
    const int64_t context = batch.context_len[i];
    require(queries >= 1 && queries <= context, "needs 1 <= query_len <= context_len");
    const int64_t blocks = (context + shape_.block_tokens - 1) / shape_.block_tokens;
    require(blocks <= batch.max_blocks, "a context is longer than its block table");
    const int32_t* table = batch.block_table + i * batch.max_blocks;
    bool inside = true;
    for (int64_t b = 0; b < blocks; ++b) inside &= table[b] >= 0 && table[b] < batch.num_pages;
    require(inside, "a block table names a page outside the arena");
    for (int64_t q = 0, count; q < queries; q += count) {
      const int64_t left = queries - q;
      count = std::min(most, left);
      AttentionItem item{table, first + q, count, context - queries + q + count, 0, -1};
      item.parts = parts_of(item.keys);
      items_.push_back(item);
    }
  }
}

// Makes tasks of about `target` cost of one item. Cut by KV heads it needs no merging; cut by parts
// of its context too where the heads are too few.
void AttentionPlan::cut(int32_t index, float target) {
  const AttentionItem& item = items_[index];
  const int64_t kv_heads = shape_.kv_heads;
  const int64_t rows = item.queries * group();
  const float cost = cost_of(item.keys, kv_heads, rows);
  const int64_t pieces = static_cast<int64_t>(std::ceil(cost / target));
  int64_t part_step = item.parts;
  int64_t heads = std::max<int64_t>(1, kv_heads / std::max<int64_t>(pieces, 1));
  const int64_t floats = item.parts * State::floats(shape_.heads * item.queries, pitch_);
  if (pieces > kv_heads && item.parts > 1 && floats <= partial_left_) {
    partial_left_ -= floats;
    part_step = 1;
    heads = std::max<int64_t>(1, kv_heads * item.parts / pieces);
    for (int32_t h = 0; h < kv_heads; ++h)
      combines_.push_back({index, 0, static_cast<int32_t>(item.parts), h, h + 1, 0});
  }
  for (int64_t part = 0; part < item.parts; part += part_step) {
    const int64_t last = std::min(item.parts, part + part_step);
    const int64_t keys = std::min(item.keys, last * PART) - part * PART;
    for (int64_t h = 0; h < kv_heads; h += heads) {
      const int64_t last_head = std::min(kv_heads, h + heads);
      tasks_.push_back({index, static_cast<int32_t>(part), static_cast<int32_t>(last),
                        static_cast<int32_t>(h), static_cast<int32_t>(last_head),
                        cost_of(keys, last_head - h, rows)});
    }
  }
}

void AttentionPlan::reserve(int64_t partial_floats) {
  scratch_floats_ = LANES;
  for (const AttentionItem& item : items_)
    scratch_floats_ = std::max(scratch_floats_, scratch_of(shape_, item.queries == 1));
  const size_t needed = threads_ * scratch_floats_ + partial_floats + LANES;
  if (memory_.size() < needed) {
    memory_ = {};  // what is in it is of the last step; never both at once, nor more than needed
    memory_ = std::vector<float>(needed);
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory_.data());
  scratch_ = memory_.data() + (round_up(start, 64) - start) / sizeof(float);
  partial_ = scratch_ + threads_ * scratch_floats_;
}

int64_t AttentionPlan::most_bytes(const AttentionShape& shape, int threads, int64_t rows,
                                  int64_t context) {
  const int64_t pitch = pitch_of(shape), members = std::max(threads, 1);
  const int64_t scratch = std::max(scratch_of(shape, true), scratch_of(shape, false));
  // An item that is cut by parts costs more than kv_heads of TASKS_PER_THREAD * threads pieces of
  // all there is, so there are only so many of them.
  const int64_t items = threads <= 1 ? 0 : static_cast<int64_t>(TASKS_PER_THREAD) * threads /
                                               shape.kv_heads;
  const int64_t queries = std::min(most_queries(shape), rows);
  const int64_t by_items = items * State::floats(shape.heads * queries, pitch);
  const int64_t by_rows = std::min(items, rows) * 2 * LANES + rows * shape.heads * (pitch + 2);
  const int64_t partial = std::min(by_items, by_rows) * parts_of(context);
  const int64_t floats =
      members * scratch + std::min(partial, PARTIAL_FLOATS_MAX) + LANES;
  return floats * sizeof(float);
}

}  // namespace tenora
