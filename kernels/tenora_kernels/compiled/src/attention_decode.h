// One query token over one part of its context, all KV heads of a task at once, so that whole lines
// are read in the order in which they lie in memory.
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
        pitch_(plan.pitch()) {
    const int64_t rows = (last_head - first_head) * group_;
    lines_ = scratch.take<const T*>(DECODE_PART);
    scores_ = scratch.take<float>(rows * DECODE_PART);
    weights_ = scratch.take<Weight>(rows * DECODE_PART);
  }

  void attend(int64_t part, const State& state) {
    const int64_t first = part * DECODE_PART;
    const int64_t tokens = std::min(DECODE_PART, item_.keys - first);
    const int64_t steps = (tokens + STEP - 1) / STEP;
    find_lines(first, tokens, steps * STEP);
    for (int64_t t = 0; t < steps * STEP; t += STEP)
      by_rows([&]<int ROWS>(int64_t head, int64_t row) {
        const T* q[ROWS];
        for (int i = 0; i < ROWS; ++i)
          q[i] = p_.q.at(item_.first_row, first_head_ * group_ + row + i);
        score_lines<ROWS>(q, lines_ + t, head * p_.pages.head_dim, p_.pages.head_dim,
                          scores_ + row * DECODE_PART + t, DECODE_PART);
      });
    const int64_t rows = (last_head_ - first_head_) * group_;
    for (int64_t row = 0; row < rows; ++row)
      soften(row, tokens, steps * STEP, state);
    std::fill_n(state.mixed, rows * pitch_, 0.0f);
    const int64_t values = p_.pages.block();
    for (int64_t t = 0; t < steps * STEP; t += STEP)
      by_rows([&]<int ROWS>(int64_t head, int64_t row) {
        mix_lines<ROWS>(weights_ + row * DECODE_PART + t, DECODE_PART, lines_ + t,
                        values + head * p_.pages.head_dim, p_.pages.head_dim,
                        state.mixed + row * pitch_, pitch_);
      });
  }

 private:
  using Weight = typename Element<T>::type;

  const AttentionArguments<T>& p_;
  const AttentionItem& item_;
  const int64_t first_head_, last_head_, group_, pitch_;
  const T** lines_;  // keys of each token; the last one's again up to a whole step
  float* scores_;    // [rows, DECODE_PART]
  Weight* weights_;  // [rows, DECODE_PART]

  void find_lines(int64_t first, int64_t tokens, int64_t padded) {
    int64_t block = first / p_.pages.block_tokens;
    int64_t offset = first % p_.pages.block_tokens;
    const int64_t line = p_.pages.line();
    for (int64_t t = 0; t < tokens; ++block, offset = 0) {
      const T* keys = p_.pages.keys(item_.blocks[block], p_.layer);
      for (; offset < p_.pages.block_tokens && t < tokens; ++offset, ++t)
        lines_[t] = keys + offset * line;
    }
    for (int64_t t = tokens; t < padded; ++t) lines_[t] = lines_[tokens - 1];
  }

  // Calls work<ROWS>(KV head, first row) for up to four query heads of a KV head at a time.
  template <typename Work>
  void by_rows(Work&& work) {
    for (int64_t head = first_head_; head < last_head_; ++head) {
      const int64_t first = (head - first_head_) * group_;
      int64_t i = 0;
      for (; i + 4 <= group_; i += 4) work.template operator()<4>(head, first + i);
      switch (group_ - i) {
        case 3: work.template operator()<3>(head, first + i); break;
        case 2: work.template operator()<2>(head, first + i); break;
        case 1: work.template operator()<1>(head, first + i); break;
      }
    }
  }

  // The weights of one row from its scores.
  void soften(int64_t row, int64_t tokens, int64_t padded, const State& state) {
    const float scale = p_.scale * LOG2_E;
    float* scores = scores_ + row * DECODE_PART;
    for (int64_t t = tokens; t < padded; ++t) scores[t] = -__builtin_inff();
    Lanes most = Lanes{} - __builtin_inff();
    for (int64_t t = 0; t < padded; t += LANES) {
      const Lanes some = load(scores + t);
      // What lies behind the end stays -inf, whatever the scale's sign.
      const Lanes scaled = t + LANES <= tokens ? some * scale : scaled_tail(some, scale);
      store(scores + t, scaled);
      most = scaled > most ? scaled : most;
    }
    const float high = highest(most);
    const float base = high == -__builtin_inff() ? 0.0f : high;
    Lanes total = {};
    for (int64_t t = 0; t < padded; t += LANES) {
      const Lanes weight = exp2_below_one(load(scores + t) - base);
      total += weight;
      store_elements(weights_ + row * DECODE_PART + t, weight);
    }
    state.highest[row] = high;
    state.sum[row] = sum(total);
  }

  static Lanes scaled_tail(Lanes some, float scale) {
    const Lanes none = Lanes{} - __builtin_inff();
    return some == none ? none : some * scale;
  }
};

}  // namespace tenora
