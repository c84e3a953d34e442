// The draft layer as torch sees it: a class that keeps its weights, and checks what is handed over.
#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "decoder_bindings.h"
#include "draft_layer.h"
#include "torch_tensors.h"

namespace {

// The layer's tensors, in this order; an empty tensor stands for one that there is not.
enum DraftTensor {
  DRAFT_EMBEDDING, LM_HEAD, BASE_NORM = LM_HEAD + 3, EMBEDDING_NORM, STATE_NORM, ATTENTION_NORM,
  MLP_NORM, DRAFT_NORM, JOIN, DRAFT_QUERY = JOIN + 3, DRAFT_OUT = DRAFT_QUERY + 3,
  DRAFT_GATE_UP = DRAFT_OUT + 3, DRAFT_DOWN = DRAFT_GATE_UP + 3, DRAFT_HEAD = DRAFT_DOWN + 3,
  VOCABULARY = DRAFT_HEAD + 3, DRAFT_COS, DRAFT_SIN, DRAFT_TENSORS
};

class DraftLayer : public torch::CustomClassHolder {
 public:
  // `sizes`: hidden, intermediate, heads, kv_heads, head_dim, vocab.
  DraftLayer(std::vector<Tensor> tensors, std::vector<int64_t> sizes, double norm_eps,
             double attention_scale)
      : tensors_(std::move(tensors)) {
    TORCH_CHECK(tensors_.size() == DRAFT_TENSORS && sizes.size() == 6,
                "draft layer: wrong number of tensors or sizes");
    shape_ = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5],
              static_cast<float>(norm_eps), static_cast<float>(attention_scale)};
    for (const int64_t size : sizes) TORCH_CHECK(size > 0, "draft layer: a size is not positive");
    TORCH_CHECK(shape_.heads % shape_.kv_heads == 0, "draft layer: heads do not divide");
    const Tensor& vocabulary = tensors_[VOCABULARY];
    check_vector(vocabulary, vocabulary.numel(), at::kLong, "vocabulary");
    check_range<int64_t>(vocabulary, 0, shape_.vocab, "vocabulary");
    TORCH_CHECK(vocabulary.numel() > 0, "draft layer: it has no vocabulary");
    type_ = tensors_[BASE_NORM].scalar_type();
    TORCH_CHECK(type_ == at::kFloat || type_ == at::kBFloat16, "draft layer: dtype");
    if (type_ == at::kFloat)
      float_ = std::make_unique<tenora::DraftLayer<float>>(shape_, weights<float>());
    else
      bf16_ = std::make_unique<tenora::DraftLayer<bf16>>(shape_, weights<bf16>());
  }

  // Chains of `count` tokens, those of a row side by side, and how many of each are as likely,
  // together, as `least_chance`. `last`: of the step's tokens, whose
  // residual stream [tokens, hidden] it is, the one before each row's; `table_rows`: whose pages in
  // `block_table` [sequences, max_blocks] are each row's.
  std::tuple<std::vector<int64_t>, std::vector<int64_t>> propose(
      const Tensor& residual, const std::vector<int64_t>& last,
      const std::vector<int64_t>& token_ids, const std::vector<int64_t>& positions,
      const Tensor& block_table, const std::vector<int64_t>& table_rows, const Tensor& pool,
      int64_t num_layers, int64_t block_tokens, int64_t count, double least_chance) {
    const size_t rows = token_ids.size();
    TORCH_CHECK(last.size() == rows && positions.size() == rows && table_rows.size() == rows &&
                    count >= 0,
                "draft layer: rows differ in number");
    TORCH_CHECK(num_layers > 0 && block_tokens > 0 && pool.dim() == 2 && pool.is_contiguous() &&
                    pool.device().is_cpu() && pool.scalar_type() == type_ &&
                    pool.size(1) == num_layers * 2 * block_tokens * shape_.kv_width(),
                "draft layer: the arena has the wrong dtype or shape");
    TORCH_CHECK(residual.dim() == 2 && residual.is_contiguous() && residual.device().is_cpu() &&
                    residual.scalar_type() == type_ && residual.size(1) == shape_.hidden,
                "draft layer: residual has the wrong dtype or shape");
    TORCH_CHECK(block_table.dim() == 2 && block_table.is_contiguous() &&
                    block_table.device().is_cpu() && block_table.scalar_type() == at::kInt,
                "draft layer: block_table has the wrong dtype or shape");
    check(last, 0, residual.size(0), "last");
    check(token_ids, 0, shape_.vocab, "token_ids");
    check(positions, 1, max_positions(), "positions");
    check(table_rows, 0, block_table.size(0), "table_rows");
    const int64_t blocks = block_table.size(1);
    std::vector<int32_t> table;
    for (const int64_t row : table_rows) {
      const int32_t* first = block_table.const_data_ptr<int32_t>() + row * blocks;
      table.insert(table.end(), first, first + blocks);
    }
    std::vector<int64_t> chains(rows * count), lengths(rows);
    const auto run = [&]<typename T>(tenora::DraftLayer<T>& layer) {
      layer.propose({static_cast<int64_t>(rows),
                     data<T>(residual),
                     last.data(),
                     token_ids.data(),
                     positions.data(),
                     {data<T>(pool), num_layers, block_tokens, shape_.kv_heads, shape_.head_dim},
                     table.data(),
                     blocks,
                     pool.size(0),
                     count,
                     static_cast<float>(least_chance)},
                    chains.data(), lengths.data(), at::get_num_threads());
    };
    if (float_) run(*float_);
    else run(*bf16_);
    return {std::move(chains), std::move(lengths)};
  }

 private:
  std::vector<Tensor> tensors_;  // keeps the weights alive
  tenora::DecoderShape shape_;
  at::ScalarType type_;
  std::unique_ptr<tenora::DraftLayer<float>> float_;
  std::unique_ptr<tenora::DraftLayer<bf16>> bf16_;

  static void check(const std::vector<int64_t>& values, int64_t first, int64_t end,
                    const char* name) {
    for (const int64_t value : values)
      TORCH_CHECK(value >= first && value < end, "draft layer: ", name, " is out of range");
  }

  int64_t max_positions() const { return tensors_[DRAFT_COS].size(0); }

  template <typename T>
  tenora::DraftWeights<T> weights() const {
    const Tensor* t = tensors_.data();
    const int64_t hidden = shape_.hidden, inner = shape_.intermediate;
    const int64_t query = shape_.query_width(), known = t[VOCABULARY].numel();
    const auto norm = [&](int at) { return vector_of<T>(t[at], hidden, type_); };
    const auto packed = [&](int at, int64_t out, int64_t in) {
      return packed_of<T>(t + at, type_, out, in);
    };
    const Tensor &cos = t[DRAFT_COS], &sin = t[DRAFT_SIN];
    TORCH_CHECK(cos.dim() == 2 && cos.sizes() == sin.sizes() && cos.size(0) > 1 &&
                    2 * cos.size(1) <= shape_.head_dim,
                "draft layer: cos and sin");
    check_size(cos, cos.numel(), at::kFloat);
    check_size(sin, sin.numel(), at::kFloat);
    return {vector_of<T>(t[DRAFT_EMBEDDING], shape_.vocab * hidden, type_, true),
            packed(LM_HEAD, shape_.vocab, hidden),
            norm(BASE_NORM),
            norm(EMBEDDING_NORM),
            norm(STATE_NORM),
            norm(ATTENTION_NORM),
            norm(MLP_NORM),
            norm(DRAFT_NORM),
            packed(JOIN, hidden, 2 * hidden),
            packed(DRAFT_QUERY, query, hidden),
            packed(DRAFT_OUT, hidden, query),
            packed(DRAFT_GATE_UP, 2 * inner, hidden),
            packed(DRAFT_DOWN, hidden, inner),
            packed(DRAFT_HEAD, known, hidden),
            data<int64_t>(t[VOCABULARY]),
            {data<float>(cos), data<float>(sin), cos.size(1)},
            cos.size(0)};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(tenora, library) {
  library.class_<DraftLayer>("DraftLayer")
      .def(torch::init<std::vector<Tensor>, std::vector<int64_t>, double, double>())
      .def("propose", &DraftLayer::propose);
}
