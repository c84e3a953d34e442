// The decoder as torch sees it: a class that keeps its weights, and checks what a step hands over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>

#include "adapter_check.h"
#include "decoder.h"
#include "torch_tensors.h"

namespace {

// Tensors of one layer, in this order; an empty tensor stands for one that the model lacks.
enum LayerTensor {
  ATTENTION_IN, ATTENTION_OUT, MLP_IN, MLP_OUT, QUERY_NORM, KEY_NORM, COS, SIN,
  QKV, OUT = QKV + 3, GATE_UP = OUT + 3, DOWN = GATE_UP + 3,
  LAYER_TENSORS = DOWN + 3
};
enum ModelTensor { EMBEDDING, FINAL_NORM, HEAD, MODEL_TENSORS = HEAD + 3 };
// Each projection's.
enum ProjectionTensor { PACKED, SCALES, BIAS };

void check_size(const Tensor& tensor, int64_t elements, at::ScalarType type,
                bool optional = false) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.device().is_cpu() && tensor.scalar_type() == type &&
                  (tensor.numel() == elements || (optional && tensor.numel() == 0)),
              "decoder: a weight has ", tensor.numel(), " elements, not ", elements,
              ", or another dtype");
}

template <typename T>
const T* vector_of(const Tensor& tensor, int64_t elements, at::ScalarType type,
                   bool optional = false) {
  check_size(tensor, elements, type, optional);
  return tensor.numel() ? data<T>(tensor) : nullptr;
}

// Of three tensors, see ProjectionTensor.
template <typename T>
tenora::PackedWeight<T> packed_of(const Tensor* t, at::ScalarType type, int64_t out, int64_t in) {
  const bool quantised = t[SCALES].numel() > 0;
  const int64_t filled = tenora::panels_of(out) * tenora::PANEL;
  TORCH_CHECK(in % (quantised ? 4 : 2) == 0, "decoder: a packed weight has ", in, " inputs");
  check_size(t[PACKED], tenora::packed_elements(out, in), quantised ? at::kByte : type);
  const T* bias = vector_of<T>(t[BIAS], out, type, true);
  if (!quantised) return {t[PACKED].const_data_ptr(), bias, out, in};
  check_size(t[SCALES], filled, at::kFloat);
  return {t[PACKED].const_data_ptr(), bias, out, in, data<float>(t[SCALES])};
}

void check_vector(const Tensor& tensor, int64_t elements, at::ScalarType type, const char* name) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.device().is_cpu() && tensor.scalar_type() == type &&
                  tensor.dim() == 1 && tensor.size(0) == elements,
              "decoder: ", name, " has the wrong dtype or shape");
}

template <typename T>
void check_range(const Tensor& tensor, int64_t first, int64_t end, const char* name) {
  const auto* values = tensor.const_data_ptr<T>();
  for (int64_t i = 0; i < tensor.size(0); ++i)
    TORCH_CHECK(values[i] >= first && values[i] < end, "decoder: ", name, " is out of range");
}

class Decoder : public torch::CustomClassHolder {
 public:
  // `sizes`: hidden, intermediate, heads, kv_heads, head_dim, vocab.
  Decoder(std::vector<Tensor> layers, std::vector<Tensor> model, std::vector<int64_t> sizes,
          double norm_eps, double attention_scale)
      : tensors_(std::move(layers)), model_(std::move(model)) {
    TORCH_CHECK(sizes.size() == 6 && model_.size() == MODEL_TENSORS && !tensors_.empty() &&
                    tensors_.size() % LAYER_TENSORS == 0,
                "decoder: wrong number of tensors or sizes");
    shape_ = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5],
              static_cast<float>(norm_eps), static_cast<float>(attention_scale)};
    for (const int64_t size : sizes) TORCH_CHECK(size > 0, "decoder: a size is not positive");
    TORCH_CHECK(shape_.heads % shape_.kv_heads == 0, "decoder: heads do not divide");
    type_ = model_[FINAL_NORM].scalar_type();
    TORCH_CHECK(type_ == at::kFloat || type_ == at::kBFloat16, "decoder: dtype");
    if (type_ == at::kFloat)
      float_ = std::make_unique<tenora::Decoder<float>>(shape_, weights<float>());
    else
      bf16_ = std::make_unique<tenora::Decoder<bf16>>(shape_, weights<bf16>());
    max_positions_ = max_positions();
  }

  // Where KV and adapters lie from now on.
  // `table`: granule_offset, rank, a_offset, b_offset, scale.
  void use_arena(Tensor pool, Tensor adapters, int64_t block_tokens, std::vector<Tensor> table) {
    const int64_t page_elements = num_layers() * 2 * block_tokens * shape_.kv_width();
    TORCH_CHECK(block_tokens > 0 && pool.dim() == 2 && pool.is_contiguous() &&
                    pool.device().is_cpu() && pool.scalar_type() == type_ &&
                    pool.size(1) == page_elements,
                "decoder: the arena has the wrong dtype or shape");
    const bool int8 = adapters.scalar_type() == at::kChar;
    TORCH_CHECK(adapters.is_contiguous() && adapters.device().is_cpu() &&
                    (int8 || adapters.scalar_type() == type_),
                "decoder: the adapters' pages have the wrong dtype or device");
    check_table(table);
    pool_ = std::move(pool);
    adapters_ = std::move(adapters);
    block_tokens_ = block_tokens;
    table_ = std::move(table);
    checked_version_ = -1;
  }

  // Logits [wanted, vocab].
  Tensor next_logits(const Tensor& token_ids, const Tensor& positions, const Tensor& slots,
                     const Tensor& query_start, const Tensor& context_len,
                     const Tensor& block_table, const Tensor& row_slot, const Tensor& wanted) {
    const Rows rows{token_ids,   positions,   slots,    query_start,
                    context_len, block_table, row_slot, wanted};
    return logits(rows, nullptr);
  }

  // The likeliest token of each row that is wanted, of those that its mask allows: mask_of [wanted]
  // is its place in masks [num_masks, ceil(vocab / 32)], negative where it has none; both are empty
  // where nobody has.
  std::vector<int64_t> next_tokens(const Tensor& token_ids, const Tensor& positions,
                                   const Tensor& slots, const Tensor& query_start,
                                   const Tensor& context_len, const Tensor& block_table,
                                   const Tensor& row_slot, const Tensor& wanted,
                                   const Tensor& mask_of, const Tensor& masks) {
    const Rows rows{token_ids,   positions, slots,  query_start, context_len,
                    block_table, row_slot,  wanted, &mask_of,    &masks};
    return tokens(rows, nullptr);
  }

  // As those, from `layer` on and while `pause` [1] is 0. The number of layers that are done, below
  // all of them where it was paused, and then nothing else; `residual` is to be handed over again.
  std::tuple<int64_t, Tensor> advance_logits(const Tensor& residual, int64_t layer,
                                             const Tensor& pause, const Tensor& token_ids,
                                             const Tensor& positions, const Tensor& slots,
                                             const Tensor& query_start, const Tensor& context_len,
                                             const Tensor& block_table, const Tensor& row_slot,
                                             const Tensor& wanted) {
    const Rows rows{token_ids,   positions,   slots,    query_start,
                    context_len, block_table, row_slot, wanted};
    Pausable state{residual, layer, pause};
    Tensor found = logits(rows, &state);
    return {state.layer, found};
  }

  std::tuple<int64_t, std::vector<int64_t>> advance_tokens(
      const Tensor& residual, int64_t layer, const Tensor& pause, const Tensor& token_ids,
      const Tensor& positions, const Tensor& slots, const Tensor& query_start,
      const Tensor& context_len, const Tensor& block_table, const Tensor& row_slot,
      const Tensor& wanted, const Tensor& mask_of, const Tensor& masks) {
    const Rows rows{token_ids,   positions, slots,  query_start, context_len,
                    block_table, row_slot,  wanted, &mask_of,    &masks};
    Pausable state{residual, layer, pause};
    std::vector<int64_t> found = tokens(rows, &state);
    return {state.layer, std::move(found)};
  }

  std::vector<double> take_seconds() {
    const tenora::PartSeconds seconds = float_ ? float_->take_seconds() : bf16_->take_seconds();
    return {seconds.begin(), seconds.end()};
  }

 private:
  std::vector<Tensor> tensors_, model_;  // keeps the weights alive
  tenora::DecoderShape shape_;
  at::ScalarType type_;
  int64_t max_positions_;
  std::unique_ptr<tenora::Decoder<float>> float_;
  std::unique_ptr<tenora::Decoder<bf16>> bf16_;
  Tensor pool_, adapters_;
  int64_t block_tokens_ = 0;
  std::vector<Tensor> table_;
  int64_t checked_version_ = -1;  // of the table, when `checked_slots_` were found to be right
  std::vector<bool> checked_slots_;

  struct Rows {
    const Tensor &token_ids, &positions, &slots, &query_start, &context_len, &block_table,
        &row_slot, &wanted;
    const Tensor* mask_of = nullptr;
    const Tensor* masks = nullptr;

    bool has_masks() const { return mask_of && mask_of->numel() > 0; }
  };

  struct Pausable {
    const Tensor& residual;
    int64_t layer;
    const Tensor& pause;
  };

  Tensor logits(const Rows& rows, Pausable* state) {
    check(rows);
    Tensor found = at::empty({rows.wanted.size(0), shape_.vocab}, pool_.options());
    const int threads = at::get_num_threads();
    if (float_)
      run<float>(state, rows, [&](auto* progress) {
        return float_->next_logits(inputs<float>(rows), data<float>(found), threads, progress);
      });
    else
      run<bf16>(state, rows, [&](auto* progress) {
        return bf16_->next_logits(inputs<bf16>(rows), data<bf16>(found), threads, progress);
      });
    return found;
  }

  std::vector<int64_t> tokens(const Rows& rows, Pausable* state) {
    check(rows);
    std::vector<int64_t> found(rows.wanted.size(0));
    const int threads = at::get_num_threads();
    if (float_)
      run<float>(state, rows, [&](auto* progress) {
        return float_->next_tokens(inputs<float>(rows), found.data(), threads, progress);
      });
    else
      run<bf16>(state, rows, [&](auto* progress) {
        return bf16_->next_tokens(inputs<bf16>(rows), found.data(), threads, progress);
      });
    return found;
  }

  // Calls `advance` with how far the step has come, or null where it is not to be paused.
  template <typename T, typename Advance>
  void run(Pausable* state, const Rows& rows, Advance&& advance) const {
    tenora::Progress<T>* const at_once = nullptr;
    if (!state) {
      advance(at_once);
      return;
    }
    check_size(state->residual, rows.token_ids.size(0) * shape_.hidden, type_);
    check_vector(state->pause, 1, at::kInt, "pause");
    TORCH_CHECK(state->layer >= 0 && state->layer < num_layers(), "decoder: layer is out of range");
    tenora::Progress<T> progress{data<T>(state->residual), static_cast<size_t>(state->layer),
                                 state->pause.const_data_ptr<int32_t>()};
    const bool is_done = advance(&progress);
    state->layer = is_done ? num_layers() : static_cast<int64_t>(progress.layer);
  }

  int64_t num_layers() const { return tensors_.size() / LAYER_TENSORS; }

  template <typename T>
  const T* vector(const Tensor& tensor, int64_t elements, bool optional = false) const {
    return vector_of<T>(tensor, elements, type_, optional);
  }

  template <typename T>
  tenora::PackedWeight<T> packed(const Tensor* t, int64_t out, int64_t in) const {
    return packed_of<T>(t, type_, out, in);
  }

  template <typename T>
  tenora::DecoderWeights<T> weights() const {
    tenora::DecoderWeights<T> all;
    for (size_t first = 0; first < tensors_.size(); first += LAYER_TENSORS) {
      const Tensor* t = &tensors_[first];
      const auto norm = [&](LayerTensor at) { return vector<T>(t[at], shape_.hidden, true); };
      all.layers.push_back(
          {norm(ATTENTION_IN), norm(ATTENTION_OUT), norm(MLP_IN), norm(MLP_OUT),
           group_norm<T>(t[QUERY_NORM], shape_.query_width()),
           group_norm<T>(t[KEY_NORM], shape_.kv_width()), rope(t[COS], t[SIN]),
           packed<T>(t + QKV, shape_.qkv_width(), shape_.hidden),
           packed<T>(t + OUT, shape_.hidden, shape_.query_width()),
           packed<T>(t + GATE_UP, 2 * shape_.intermediate, shape_.hidden),
           packed<T>(t + DOWN, shape_.hidden, shape_.intermediate)});
      TORCH_CHECK(t[QUERY_NORM].numel() > 0 == t[KEY_NORM].numel() > 0,
                  "decoder: query_norm and key_norm come together");
    }
    all.embedding = vector<T>(model_[EMBEDDING], shape_.vocab * shape_.hidden, true);
    all.final_norm = vector<T>(model_[FINAL_NORM], shape_.hidden);
    all.head = packed<T>(&model_[HEAD], shape_.vocab, shape_.hidden);
    return all;
  }

  // Of each head, or of all `width` elements of a row at once.
  template <typename T>
  tenora::GroupNorm<T> group_norm(const Tensor& weight, int64_t width) const {
    const int64_t group = weight.numel() == width ? width : shape_.head_dim;
    return {vector<T>(weight, group, true), group};
  }

  tenora::RopeTable rope(const Tensor& cos, const Tensor& sin) const {
    TORCH_CHECK(cos.dim() == 2 && 2 * cos.size(1) <= shape_.head_dim, "decoder: cos");
    check_size(cos, cos.numel(), at::kFloat);
    check_size(sin, cos.numel(), at::kFloat);
    return {data<float>(cos), data<float>(sin), cos.size(1)};
  }

  // That every layer's cosines and sines reach.
  int64_t max_positions() const {
    int64_t found = INT64_MAX;
    for (size_t first = 0; first < tensors_.size(); first += LAYER_TENSORS)
      found = std::min(found, tensors_[first + COS].size(0));
    return found;
  }

  void check_table(const std::vector<Tensor>& table) const {
    TORCH_CHECK(table.size() == 5 && table[0].dim() == 3 && table[1].dim() == 3,
                "adapter table: wrong shape");
    const Tensor& rank = table[1];
    TORCH_CHECK(table[0].scalar_type() == at::kLong && table[0].is_contiguous() &&
                    table[0].size(0) == rank.size(0) && table[0].size(1) == rank.size(1) &&
                    rank.size(1) == num_layers() && rank.size(2) == 7,
                "adapter table: wrong dtype or shape");
    for (const Tensor& tensor : table)
      TORCH_CHECK(!tensor.is_inference(), "adapter table: a tensor of torch's inference mode");
    for (int i = 1; i < 5; ++i)
      TORCH_CHECK(table[i].scalar_type() == (i == 4 ? at::kFloat : at::kInt) &&
                      table[i].is_contiguous() && table[i].sizes() == rank.sizes(),
                  "adapter table: wrong dtype or shape");
  }

  void check(const Rows& in) {
    TORCH_CHECK(pool_.defined(), "decoder: use_arena comes first");
    const int64_t rows = in.token_ids.size(0), num_seqs = in.context_len.size(0);
    check_vector(in.token_ids, rows, at::kLong, "token_ids");
    check_vector(in.positions, rows, at::kLong, "positions");
    check_vector(in.slots, rows, at::kLong, "slots");
    check_vector(in.row_slot, rows, at::kInt, "row_slot");
    check_vector(in.query_start, num_seqs + 1, at::kInt, "query_start");
    check_vector(in.context_len, num_seqs, at::kInt, "context_len");
    TORCH_CHECK(in.block_table.dim() == 2 && in.block_table.is_contiguous() &&
                    in.block_table.device().is_cpu() &&
                    in.block_table.scalar_type() == at::kInt && in.block_table.size(0) == num_seqs,
                "decoder: block_table has the wrong dtype or shape");
    const int32_t* starts = in.query_start.const_data_ptr<int32_t>();
    TORCH_CHECK(starts[0] == 0 && starts[num_seqs] == rows,
                "decoder: query_start does not go from 0 to ", rows);
    check_range<int64_t>(in.token_ids, 0, shape_.vocab, "token_ids");
    check_range<int64_t>(in.positions, 0, max_positions_, "positions");
    check_range<int64_t>(in.slots, 0, pool_.size(0) * block_tokens_, "slots");
    check_range<int32_t>(in.row_slot, INT32_MIN, table_[1].size(0), "row_slot");
    check_vector(in.wanted, in.wanted.size(0), at::kLong, "wanted");
    check_range<int64_t>(in.wanted, 0, rows, "wanted");
    check_adapters(in.row_slot);
    if (in.has_masks()) check_masks(in);
  }

  void check_masks(const Rows& in) const {
    check_vector(*in.mask_of, in.wanted.size(0), at::kInt, "mask_of");
    const int64_t num_masks = in.masks->numel() / ((shape_.vocab + 31) / 32);
    check_vector(*in.masks, num_masks * ((shape_.vocab + 31) / 32), at::kInt, "masks");
    check_range<int32_t>(*in.mask_of, INT32_MIN, num_masks, "mask_of");
  }

  // Each slot once, as long as nobody writes to the table: it takes a microsecond or several.
  void check_adapters(const Tensor& row_slot) {
    int64_t version = 0;
    for (const Tensor& tensor : table_) version += tensor._version();
    if (version != checked_version_) checked_slots_.assign(table_[1].size(0), false);
    checked_version_ = version;
    const int32_t* slots = row_slot.const_data_ptr<int32_t>();
    for (int64_t i = 0; i < row_slot.size(0); ++i) {
      if (slots[i] < 0 || checked_slots_[slots[i]]) continue;
      tenora::check_adapter(adapter_table(), adapters_.numel(), slots[i], 0, num_layers(),
                            lora_modules());
      checked_slots_[slots[i]] = true;
    }
  }

  // In the order of the table: q, k, v, o, gate, up, down.
  std::vector<tenora::ModuleShape> lora_modules() const {
    const int64_t hidden = shape_.hidden, inner = shape_.intermediate;
    const int64_t query = shape_.query_width(), kv = shape_.kv_width();
    return {{0, hidden, query}, {1, hidden, kv},    {2, hidden, kv},   {3, query, hidden},
            {4, hidden, inner}, {5, hidden, inner}, {6, inner, hidden}};
  }

  tenora::AdapterTable adapter_table() const {
    return {adapters_.const_data_ptr(), data<int64_t>(table_[0]), data<int32_t>(table_[1]),
            data<int32_t>(table_[2]), data<int32_t>(table_[3]), data<float>(table_[4]),
            table_[1].size(1), table_[0].size(2), table_[1].size(2),
            adapters_.scalar_type() == at::kChar};
  }

  template <typename T>
  tenora::StepInputs<T> inputs(const Rows& in) const {
    return {in.token_ids.size(0),
            data<int64_t>(in.token_ids),
            data<int64_t>(in.positions),
            data<int64_t>(in.slots),
            data<int32_t>(in.row_slot),
            adapter_table(),
            {data<T>(pool_), num_layers(), block_tokens_, shape_.kv_heads, shape_.head_dim},
            {data<int32_t>(in.query_start), data<int32_t>(in.context_len),
             data<int32_t>(in.block_table), in.context_len.size(0), in.block_table.size(1),
             pool_.size(0)},
            data<int64_t>(in.wanted),
            in.wanted.size(0),
            in.has_masks() ? data<int32_t>(*in.mask_of) : nullptr,
            in.has_masks() ? data<int32_t>(*in.masks) : nullptr};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(tenora, library) {
  library.class_<Decoder>("Decoder")
      .def(torch::init<std::vector<Tensor>, std::vector<Tensor>, std::vector<int64_t>, double,
                       double>())
      .def("use_arena", &Decoder::use_arena)
      .def("next_logits", &Decoder::next_logits)
      .def("next_tokens", &Decoder::next_tokens)
      .def("advance_logits", &Decoder::advance_logits)
      .def("advance_tokens", &Decoder::advance_tokens)
      .def("take_seconds", &Decoder::take_seconds);
}
