// A tile of query rows over one part of its context, one KV head at a time: online softmax over
// tiles of keys (FlashAttention-2, Dao 2023), each packed once for all rows.
#pragma once

#include "attention_tiles.h"

namespace tenora {

template <typename T>
class PrefillPart {
 public:
  PrefillPart(const AttentionPlan& plan, const AttentionArguments<T>& arguments,
              const AttentionItem& item, int64_t head, Floats& scratch)
      : p_(arguments),
        item_(item),
        head_(head),
        group_(plan.group()),
        rows_(item.queries * group_),
        pitch_(plan.pitch()) {
    lines_ = scratch.take<const T*>(KEY_TILE);
    q_ = scratch.take<Number>(rows_ * pitch_);
    scores_ = scratch.take<float>(BLOCK_ROWS * KEY_TILE);
    weights_ = scratch.take<Number>(BLOCK_ROWS * KEY_TILE);
    keys_ = scratch.take<Number>(pitch_ * KEY_TILE);
    values_ = scratch.take<Number>(KEY_TILE * pitch_);
    for (int64_t row = 0; row < rows_; ++row)
      copy_query(p_.q.at(item.first_row + row / group_, head * group_ + row % group_),
                 p_.pages.head_dim, pitch_, q_ + row * pitch_);
  }

  void attend(int64_t part, const State& state) {
    const int64_t first = part * PART;
    const int64_t end = std::min(first + PART, item_.keys);
    std::fill_n(state.highest, rows_, -__builtin_inff());
    std::fill_n(state.sum, rows_, 0.0f);
    std::fill_n(state.mixed, rows_ * pitch_, 0.0f);
    for (int64_t t = first; t < end; t += KEY_TILE)
      attend_tile(t, std::min(KEY_TILE, end - t), state);
  }

 private:
  using Number = typename Element<T>::type;

  const AttentionArguments<T>& p_;
  const AttentionItem& item_;
  const int64_t head_, group_, rows_, pitch_;
  const T** lines_;  // [KEY_TILE]
  Number* q_;        // [rows, pitch]
  float* scores_;    // [BLOCK_ROWS, KEY_TILE]
  Number* weights_;  // [BLOCK_ROWS, KEY_TILE]
  Number* keys_;     // packed
  Number* values_;   // packed

  void attend_tile(int64_t first, int64_t tokens, const State& state) {
    const int64_t lines = round_up(tokens, 2 * LANES);
    find_lines(first, tokens, lines);
    const int64_t head_dim = p_.pages.head_dim;
    const int64_t offset = head_ * head_dim;
    pack_keys(lines_, lines, offset, head_dim, pitch_, keys_);
    pack_values(lines_, lines, p_.pages.block() + offset, head_dim, pitch_, values_);
    for (int64_t row = 0; row < rows_; row += BLOCK_ROWS) {
      const int64_t rows = std::min(BLOCK_ROWS, rows_ - row);
      const int64_t seen = std::min(tokens, visible_keys(row + rows - 1) - first);
      if (seen > 0) attend_block(row, rows, first, seen, state);
    }
  }

  // Rows whose scores and weights stay in the first cache, over the keys that the last one sees.
  void attend_block(int64_t row, int64_t rows, int64_t first, int64_t seen, const State& state) {
    const int64_t columns = round_up(seen, 2 * LANES);
    float factor[BLOCK_ROWS];
    multiply(rows, q_ + row * pitch_, pitch_, keys_, KEY_TILE, pitch_, columns, scores_, KEY_TILE,
             nullptr);
    int64_t visible[BLOCK_ROWS];
    for (int64_t i = 0; i < rows; ++i) visible[i] = visible_keys(row + i) - first;
    const SoftmaxRows<Number> block{rows,          visible, p_.scale * LOG2_E, scores_, weights_,
                                    state.highest + row, state.sum + row,   factor};
    if (visible[0] >= columns) soften<false>(block, columns);
    else soften<true>(block, columns);
    multiply(rows, weights_, KEY_TILE, values_, pitch_, round_up(seen, 2), pitch_,
             state.mixed + row * pitch_, pitch_, factor);
  }

  // Lines behind the end repeat the last one: their weights are 0.
  void find_lines(int64_t first, int64_t tokens, int64_t lines) {
    const int64_t block_tokens = p_.pages.block_tokens;
    for (int64_t t = 0; t < lines; ++t) {
      const int64_t token = first + std::min(t, tokens - 1);
      lines_[t] = p_.pages.keys(item_.blocks[token / block_tokens], p_.layer) +
                  token % block_tokens * p_.pages.line();
    }
  }

  // c[rows, columns] = a[rows, depth] b, or c * factor + a b where there is a factor.
  static void multiply(int64_t rows, const Number* a, int64_t a_stride, const Number* b,
                       int64_t b_columns, int64_t depth, int64_t columns, float* c,
                       int64_t c_stride, const float* factor) {
    const auto block = [&]<int ROWS, int VECTORS>(int64_t row, int64_t column) {
      const Number* some_rows = a + row * a_stride;
      const Number* columns = b + column * Element<T>::PAIR;
      float* to = c + row * c_stride + column;
      if (factor)
        mix_block<ROWS, VECTORS>(some_rows, a_stride, columns, b_columns, depth, to, c_stride,
                                 factor + row);
      else
        score_block<ROWS, VECTORS>(some_rows, a_stride, columns, b_columns, depth, to, c_stride);
    };
    const auto column_blocks = [&]<int ROWS>(int64_t row) {
      int64_t column = 0;
      for (; column + 4 * LANES <= columns; column += 4 * LANES)
        block.template operator()<ROWS, 4>(row, column);
      if (column < columns) block.template operator()<ROWS, 2>(row, column);
    };
    int64_t row = 0;
    for (; row + 6 <= rows; row += 6) column_blocks.template operator()<6>(row);
    for (; row + 2 <= rows; row += 2) column_blocks.template operator()<2>(row);
    if (row < rows) column_blocks.template operator()<1>(row);
  }

  int64_t visible_keys(int64_t row) const {
    return item_.keys - item_.queries + 1 + row / group_;
  }
};

}  // namespace tenora
