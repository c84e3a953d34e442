// One query token over one part of its context, all KV heads of a task at once, so that whole lines
// are read in the order in which they lie in memory. Every sum is made in the order of
// attention_prefill.h: a token has the same bits whether it was decoded or is of a prompt.
#pragma once

#include "attention_tiles.h"

namespace tenora {

template <typename T>
class DecodePart {
 public:
  DecodePart(const AttentionPlan& plan, const AttentionArguments<T>& arguments,
             const AttentionItem& item, int64_t first_head, int64_t last_head, Floats& scratch)
      : p_(arguments),
        item_(item),
        first_head_(first_head),
        last_head_(last_head),
        group_(plan.group()),
        rows_((last_head - first_head) * group_),
        pitch_(plan.pitch()),
        ahead_(std::clamp<int64_t>(AHEAD_BYTES / (STEP * p_.pages.head_dim * sizeof(T)), 1,
                                   MOST_AHEAD / STEP)) {
    const int64_t room = round_up(rows_, 4);
    lines_ = scratch.take<const T*>(DECODE_LINES);
    scores_ = scratch.take<float>(room * KEY_TILE);
    weights_ = scratch.take<Number>(room * KEY_TILE);
    visible_ = scratch.take<int64_t>(rows_);
    factor_ = scratch.take<float>(rows_);
    q_ = scratch.take<Number>(rows_ * pitch_);
    for (int64_t row = 0; row < rows_; ++row)
      copy_query(p_.q.at(item.first_row, first_head * group_ + row), p_.pages.head_dim, pitch_,
                 q_ + row * pitch_);
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
  const int64_t first_head_, last_head_, group_, rows_, pitch_;
  const int64_t ahead_;  // heads of a step from what is used to what is fetched
  const T** lines_;  // [DECODE_LINES] in the order of reading: keys, values, what comes next
  float* scores_;    // [rows, KEY_TILE]
  Number* weights_;  // [rows, KEY_TILE]
  int64_t* visible_; // [rows]
  float* factor_;    // [rows]
  Number* q_;        // [rows, pitch]

  void attend_tile(int64_t first, int64_t tokens, const State& state) {
    const int64_t padded = round_up(tokens, STEP);
    find_lines(first, tokens, padded);
    by_step(lines_, padded, [&]<int ROWS>(int64_t t, const Lines<T>& lines, int64_t row) {
      const Number* q[ROWS];
      for (int i = 0; i < ROWS; ++i) q[i] = q_ + (row + i) * pitch_;
      score_lines<ROWS>(q, lines, p_.pages.head_dim, scores_ + row * KEY_TILE + t, KEY_TILE);
    });
    std::fill_n(visible_, rows_, tokens);
    const SoftmaxRows<Number> rows{rows_,   visible_,      p_.scale * LOG2_E, scores_,
                                   weights_, state.highest, state.sum,         factor_};
    const int64_t columns = round_up(tokens, 2 * LANES);
    if (tokens == columns) soften<false>(rows, columns);
    else soften<true>(rows, columns);
    for (int64_t row = 0; row < rows_; ++row) {
      float* mixed = state.mixed + row * pitch_;
      for (int64_t c = 0; c < pitch_; c += LANES) store(mixed + c, load(mixed + c) * factor_[row]);
    }
    by_step(lines_ + padded, padded, [&]<int ROWS>(int64_t t, const Lines<T>& lines, int64_t row) {
      mix_lines<ROWS>(weights_ + row * KEY_TILE + t, KEY_TILE, lines, p_.pages.head_dim,
                      state.mixed + row * pitch_, pitch_);
    });
  }

  // Each token's keys, the last one's again up to a whole step, then the values likewise, then the
  // first keys of the next tile.
  void find_lines(int64_t first, int64_t tokens, int64_t padded) {
    find_keys(first, tokens, lines_);
    for (int64_t t = tokens; t < padded; ++t) lines_[t] = lines_[tokens - 1];
    for (int64_t t = 0; t < padded; ++t) lines_[padded + t] = lines_[t] + p_.pages.block();
    const T** next = lines_ + 2 * padded;
    const int64_t more = std::min(MOST_AHEAD, item_.keys - first - tokens);
    if (more > 0) find_keys(first + tokens, more, next);
    for (int64_t t = std::max<int64_t>(more, 0); t < MOST_AHEAD; ++t) next[t] = next[t - 1];
  }

  void find_keys(int64_t first, int64_t tokens, const T** lines) {
    const int64_t block_tokens = p_.pages.block_tokens;
    const int64_t line = p_.pages.line();
    int64_t block = first / block_tokens;
    int64_t offset = first % block_tokens;
    for (int64_t t = 0; t < tokens; ++block, offset = 0) {
      const T* keys = p_.pages.keys(item_.blocks[block], p_.layer);
      for (; offset < block_tokens && t < tokens; ++offset, ++t) lines[t] = keys + offset * line;
    }
  }

  // Calls work<ROWS>(t, lines, first row) step by step, in each for up to four query heads of a KV
  // head at a time.
  template <typename Work>
  void by_step(const T* const* all, int64_t padded, Work&& work) {
    const int64_t heads = last_head_ - first_head_, head_dim = p_.pages.head_dim;
    const T* const* ahead = all + ahead_ / heads * STEP;
    int64_t ahead_head = ahead_ % heads;
    for (int64_t t = 0; t < padded; t += STEP) {
      for (int64_t head = 0; head < heads; ++head) {
        const Lines<T> lines = {all + t, (first_head_ + head) * head_dim, ahead,
                                (first_head_ + ahead_head) * head_dim};
        const int64_t row = head * group_;
        int64_t i = 0;
        for (; i + 4 <= group_; i += 4) work.template operator()<4>(t, lines, row + i);
        switch (group_ - i) {
          case 3: work.template operator()<3>(t, lines, row + i); break;
          case 2: work.template operator()<2>(t, lines, row + i); break;
          case 1: work.template operator()<1>(t, lines, row + i); break;
        }
        if (++ahead_head == heads) {
          ahead_head = 0;
          ahead += STEP;
        }
      }
    }
  }
};

}  // namespace tenora
