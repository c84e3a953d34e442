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
    scores_ = scratch.take<float>(rows_ * KEY_TILE);
    weights_ = scratch.take<Number>(rows_ * KEY_TILE);
    keys_ = scratch.take<Number>(pitch_ * KEY_TILE);
    values_ = scratch.take<Number>(KEY_TILE * pitch_);
    factor_ = scratch.take<float>(round_up(rows_, LANES));
    for (int64_t row = 0; row < rows_; ++row)
      copy_query(p_.q.at(item.first_row + row / group_, head * group_ + row % group_),
                 p_.pages.head_dim, pitch_, q_ + row * pitch_);
  }

  void attend(int64_t part, const State& state) {
    const int64_t first = part * PREFILL_PART;
    const int64_t end = std::min(first + PREFILL_PART, item_.keys);
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
  float* scores_;    // [rows, KEY_TILE]
  Number* weights_;  // [rows, KEY_TILE]
  Number* keys_;     // packed
  Number* values_;   // packed
  float* factor_;    // [rows], what a row's earlier weights shrink by

  void attend_tile(int64_t first, int64_t tokens, const State& state) {
    find_lines(first, tokens);
    const int64_t head_dim = p_.pages.head_dim;
    const int64_t offset = head_ * head_dim;
    const int64_t columns = round_up(tokens, 2 * LANES);
    pack_keys(lines_, offset, head_dim, pitch_, keys_);
    pack_values(lines_, p_.pages.block() + offset, head_dim, pitch_, values_);
    multiply(q_, pitch_, keys_, KEY_TILE, pitch_, columns, scores_, KEY_TILE, nullptr);
    if (first + columns <= visible_keys(0)) soften<false>(first, columns, state);
    else soften<true>(first, columns, state);
    multiply(weights_, KEY_TILE, values_, pitch_, round_up(tokens, 2), pitch_, state.mixed, pitch_,
             factor_);
  }

  // Lines behind the end repeat the last one: their weights are 0.
  void find_lines(int64_t first, int64_t tokens) {
    const int64_t block_tokens = p_.pages.block_tokens;
    for (int64_t t = 0; t < KEY_TILE; ++t) {
      const int64_t token = first + std::min(t, tokens - 1);
      lines_[t] = p_.pages.keys(item_.blocks[token / block_tokens], p_.layer) +
                  token % block_tokens * p_.pages.line();
    }
  }

  // c[rows, columns] = a[rows, depth] b, or c * factor + a b.
  void multiply(const Number* a, int64_t a_stride, const Number* b, int64_t b_columns,
                int64_t depth, int64_t columns, float* c, int64_t c_stride, const float* factor) {
    const auto block = [&]<int ROWS, int VECTORS>(int64_t row, int64_t column) {
      multiply_block<ROWS, VECTORS>(a + row * a_stride, a_stride,
                                    b + column * Element<T>::PAIR, b_columns, depth,
                                    c + row * c_stride + column, c_stride,
                                    factor ? factor + row : nullptr);
    };
    const auto column_blocks = [&]<int ROWS>(int64_t row) {
      int64_t column = 0;
      for (; column + 4 * LANES <= columns; column += 4 * LANES)
        block.template operator()<ROWS, 4>(row, column);
      if (column < columns) block.template operator()<ROWS, 2>(row, column);
    };
    int64_t row = 0;
    for (; row + 6 <= rows_; row += 6) column_blocks.template operator()<6>(row);
    for (; row + 2 <= rows_; row += 2) column_blocks.template operator()<2>(row);
    if (row < rows_) column_blocks.template operator()<1>(row);
  }

  // The tile's scores of a row, times scale * log2 e; -inf where the row may not look.
  template <bool MASKED>
  Lanes visible_scores(int64_t row, int64_t column, int64_t visible) const {
    const Lanes scaled = load(scores_ + row * KEY_TILE + column) * (p_.scale * LOG2_E);
    if (!MASKED) return scaled;
    const Bits index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const uint32_t count = std::max<int64_t>(0, visible - column);
    return index < count ? scaled : Lanes{} - __builtin_inff();
  }

  // The tile's weights from its scores; brings the rows' highest scores and sums up to date.
  template <bool MASKED>
  void soften(int64_t first, int64_t columns, const State& state) {
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t visible = visible_keys(row) - first;
      Lanes most = Lanes{} + state.highest[row];
      for (int64_t c = 0; c < columns; c += LANES) {
        const Lanes some = visible_scores<MASKED>(row, c, visible);
        most = some > most ? some : most;
      }
      const float high = highest(most);
      factor_[row] = high == -__builtin_inff() ? 0.0f : state.highest[row] - high;
      state.highest[row] = high;
    }
    for (int64_t row = 0; row < rows_; row += LANES)
      store(factor_ + row, exp2_below_one(load(factor_ + row)));
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t visible = visible_keys(row) - first;
      const float high = state.highest[row];
      const float base = high == -__builtin_inff() ? 0.0f : high;
      Lanes total = {};
      for (int64_t c = 0; c < columns; c += LANES) {
        const Lanes weight = exp2_below_one(visible_scores<MASKED>(row, c, visible) - base);
        total += weight;
        store_elements(weights_ + row * KEY_TILE + c, weight);
      }
      state.sum[row] = state.sum[row] * factor_[row] + sum(total);
    }
  }

  int64_t visible_keys(int64_t row) const {
    return item_.keys - item_.queries + 1 + row / group_;
  }
};

}  // namespace tenora
