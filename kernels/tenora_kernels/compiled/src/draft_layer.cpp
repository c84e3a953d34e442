#include "draft_layer.h"

#include <algorithm>

#include "likeliest.h"
#include "norms.h"
#include "rope.h"

namespace tenora {
namespace {

// Of the softmax of a row of logits, the highest's.
template <typename T>
float share(const T* logits, int64_t count, int64_t highest) {
  constexpr float LOG2_E = 1.44269504f;
  const float most = value(logits[highest]);
  Lanes sums{};
  by_lanes(logits, count, [&](Lanes lanes, int64_t, int64_t used) {
    Lanes powers = exp2_below_one((lanes - most) * LOG2_E);
    for (int64_t i = used; i < LANES; ++i) powers[i] = 0;
    sums += powers;
  });
  return 1 / sum(sums);
}

}  // namespace

// One thread's way through the chains.
template <typename T>
class DraftLayer<T>::Chain {
 public:
  Chain(DraftLayer& layer, const DraftInputs<T>& inputs, int64_t* chains, int64_t* lengths,
        Member& member)
      : at_(layer),
        shape_(layer.shape_),
        weights_(layer.weights_),
        in_(inputs),
        chains_(chains),
        lengths_(lengths),
        member_(member) {}

  void run() {
    begin();
    for (int64_t ahead = 0; ahead < in_.count && !is_over(); ++ahead) {
      join();
      self_attention();
      feed_forward();
      head(ahead);
    }
  }

 private:
  DraftLayer& at_;
  const DecoderShape& shape_;
  const DraftWeights<T>& weights_;
  const DraftInputs<T>& in_;
  int64_t* chains_;
  int64_t* lengths_;
  Member& member_;

  // Whether no chain goes on. Between two barriers nobody writes what is read.
  bool is_over() const {
    return std::all_of(at_.chance_.begin(), at_.chance_.end(),
                       [&](float chance) { return chance < in_.least_chance; });
  }

  void norm(const T* x, const T* weight, T* to, int64_t to_stride) {
    rms_norm(member_, x, shape_.hidden, weight, shape_.norm_eps, to, to_stride, in_.rows,
             shape_.hidden);
  }

  // y = x W^T, or y += that.
  void linear(const PackedWeight<T>& weight, const T* x, T* y, bool add = false) {
    const RowsOf<T> rows{x,        weight.in,          in_.rows, at_.quantised_.data(),
                         at_.scales_.data(), at_.offsets_.data()};
    if (weight.scales) {
      quantise_rows(member_, rows, weight.in);
      member_.barrier();
    }
    multiply(member_, rows, weight, y, weight.out, add);
    member_.barrier();
  }

  void begin() {
    member_.deal(in_.rows, [&](int64_t row) {
      std::copy_n(in_.residual + in_.last[row] * shape_.hidden, shape_.hidden,
                  at_.residual_.data() + row * shape_.hidden);
    });
    member_.barrier();
    norm(at_.residual_.data(), weights_.base_norm, at_.state_.data(), shape_.hidden);
    member_.barrier();
  }

  void join() {
    const int64_t width = shape_.hidden;
    member_.deal(in_.rows, [&](int64_t row) {
      T* to = at_.embedded_.data() + row * width;
      const int64_t token = at_.token_ids_[row];
      if (weights_.embedding)
        std::copy_n(weights_.embedding + token * width, width, to);
      else
        unpack_row(weights_.lm_head, token, to);
    });
    member_.barrier();
    norm(at_.embedded_.data(), weights_.embedding_norm, at_.joined_.data(), 2 * width);
    norm(at_.state_.data(), weights_.state_norm, at_.joined_.data() + width, 2 * width);
    member_.barrier();
    linear(weights_.join, at_.joined_.data(), at_.residual_.data());
  }

  void self_attention() {
    const int64_t head_dim = shape_.head_dim, width = shape_.query_width();
    norm(at_.residual_.data(), weights_.attention_norm, at_.normed_.data(), shape_.hidden);
    member_.barrier();
    linear(weights_.query, at_.normed_.data(), at_.query_.data());
    rotate<T>(member_, {at_.query_.data(), width, head_dim}, in_.rows, shape_.heads,
              weights_.rope.cos, weights_.rope.sin, weights_.rope.half, at_.positions_.data());
    member_.barrier();
    const KVPages<T>& p = in_.pages;
    const AttentionArguments<T> arguments{
        {at_.query_.data(), width, head_dim},
        {p.pool, p.num_layers, p.block_tokens, p.kv_heads, p.head_dim},
        p.num_layers - 1,
        shape_.attention_scale,
        {at_.attended_.data(), width, head_dim}};
    attend(member_, at_.attention_, arguments);
    member_.barrier();
    if (at_.attention_.is_split()) {
      combine(member_, at_.attention_, arguments);
      member_.barrier();
    }
    linear(weights_.out, at_.attended_.data(), at_.residual_.data(), true);
  }

  void feed_forward() {
    const int64_t inner = shape_.intermediate;
    norm(at_.residual_.data(), weights_.mlp_norm, at_.normed_.data(), shape_.hidden);
    member_.barrier();
    linear(weights_.gate_up, at_.normed_.data(), at_.gate_up_.data());
    silu_mul(member_, at_.gate_up_.data(), 2 * inner, at_.activated_.data(), inner, in_.rows,
             inner);
    member_.barrier();
    linear(weights_.down, at_.activated_.data(), at_.residual_.data(), true);
  }

  void head(int64_t ahead) {
    norm(at_.residual_.data(), weights_.final_norm, at_.state_.data(), shape_.hidden);
    member_.barrier();
    linear(weights_.head, at_.state_.data(), at_.logits_.data());
    const int64_t count = weights_.head.out;
    member_.deal(in_.rows, [&](int64_t row) {
      const T* logits = at_.logits_.data() + row * count;
      // Logits that are no numbers have no chance, and so no token.
      const int64_t best = std::max<int64_t>(likeliest(logits, count), 0);
      const int64_t token = weights_.vocabulary[best];
      at_.chance_[row] *= share(logits, count, best);
      chains_[row * in_.count + ahead] = at_.token_ids_[row] = token;
      lengths_[row] += at_.chance_[row] >= in_.least_chance;
      // Beyond the last position none of a chain's tokens can come.
      at_.positions_[row] = std::min(at_.positions_[row] + 1, weights_.max_positions - 1);
    });
    member_.barrier();
  }
};

template <typename T>
void DraftLayer<T>::reserve(int64_t rows) {
  const int64_t hidden = shape_.hidden, inner = shape_.intermediate;
  const int64_t widest = std::max({2 * hidden, inner, shape_.query_width()});
  state_.resize(rows * hidden);
  embedded_.resize(rows * hidden);
  joined_.resize(rows * 2 * hidden);
  residual_.resize(rows * hidden);
  normed_.resize(rows * hidden);
  query_.resize(rows * shape_.query_width());
  attended_.resize(rows * shape_.query_width());
  gate_up_.resize(rows * 2 * inner);
  activated_.resize(rows * inner);
  logits_.resize(rows * weights_.head.out);
  quantised_.resize(rows * widest);
  scales_.resize(rows * groups_of(widest));
  offsets_.resize(rows * groups_of(widest));
}

template <typename T>
void DraftLayer<T>::propose(const DraftInputs<T>& inputs, int64_t* chains, int64_t* lengths,
                            int threads) {
  const int64_t rows = inputs.rows;
  std::fill_n(lengths, rows, 0);
  if (rows == 0 || inputs.count == 0) return;
  chance_.assign(rows, 1.0f);
  reserve(rows);
  token_ids_.assign(inputs.token_ids, inputs.token_ids + rows);
  positions_.assign(inputs.positions, inputs.positions + rows);
  context_len_.assign(positions_.begin(), positions_.end());
  query_start_.resize(rows + 1);
  for (int64_t row = 0; row <= rows; ++row) query_start_[row] = row;
  const KVPages<T>& pages = inputs.pages;
  attention_.make({query_start_.data(), context_len_.data(), inputs.block_table, rows,
                   inputs.max_blocks, inputs.num_pages},
                  {shape_.heads, shape_.kv_heads, shape_.head_dim, pages.block_tokens}, threads);
  run_team(threads, [&](Member& member) { Chain(*this, inputs, chains, lengths, member).run(); });
}

template class DraftLayer<float>;
template class DraftLayer<bf16>;

}  // namespace tenora
