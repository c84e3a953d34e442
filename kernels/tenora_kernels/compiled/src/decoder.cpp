// One step: phases in which all threads share one kind of work, with a barrier after each. What a
// row gets depends on its own sequence only, down to the bits.

#include "decoder.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <new>

#include "likeliest.h"
#include "norms.h"
#include "rope.h"

namespace tenora {
namespace {

// The first of LORA_MODULES' places that a linear's slices take: q, k, v, o, gate, up, down.
constexpr int64_t QKV = 0, OUT = 3, GATE_UP = 4, DOWN = 6;

// Charges the time since the last lap to a part.
class Clock {
 public:
  explicit Clock(PartSeconds* seconds) : seconds_(seconds) {
    if (seconds_) last_ = now();
  }

  void lap(Part part) {
    if (!seconds_) return;
    const double time = now();
    (*seconds_)[static_cast<int>(part)] += time - last_;
    last_ = time;
  }

 private:
  PartSeconds* seconds_;
  double last_ = 0;

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

// One thread's way through a step.
template <typename T>
class Decoder<T>::Step {
 public:
  Step(Decoder& decoder, const StepInputs<T>& inputs, const Buffers& buffers, T* logits,
       int64_t* tokens, Progress<T>& progress, bool& pausing, Member& member)
      : shape_(decoder.shape_),
        weights_(decoder.weights_),
        attention_(decoder.attention_),
        sgmv_(decoder.sgmv_),
        in_(inputs),
        at_(buffers),
        logits_(logits),
        tokens_(tokens),
        progress_(progress),
        pausing_(pausing),
        member_(member),
        clock_(member.index() == 0 ? &decoder.seconds_ : nullptr) {}

  void run() {
    const size_t end = weights_.layers.size();
    if (progress_.layer == 0) embed();
    for (size_t index = progress_.layer; index < end; ++index) {
      const DecoderLayer<T>& layer = weights_.layers[index];
      self_attention(layer, index, normed(layer.attention_in));
      const T* x = normed(layer.mlp_in);
      if (index + 1 < end) ask_to_pause(index + 1);
      feed_forward(layer, index, x);
      if (pausing_) return;
    }
    head();
  }

 private:
  const DecoderShape& shape_;
  const DecoderWeights<T>& weights_;
  AttentionPlan& attention_;
  Sgmv& sgmv_;
  const StepInputs<T>& in_;
  const Buffers& at_;
  T* logits_;
  int64_t* tokens_;  // or null
  Progress<T>& progress_;
  bool& pausing_;  // of all members: written before a layer's last barrier, read after it
  Member& member_;
  Clock clock_;

  void ask_to_pause(size_t next_layer) {
    if (member_.index() != 0 || !progress_.pause) return;
    progress_.layer = next_layer;
    pausing_ = __atomic_load_n(progress_.pause, __ATOMIC_ACQUIRE) != 0;
  }

  void end_phase(Part part) {
    clock_.lap(part);
    member_.barrier();
    clock_.lap(Part::Waiting);
  }

  void embed() {
    const int64_t width = shape_.hidden;
    member_.deal(in_.rows, [&](int64_t row) {
      T* to = at_.residual + row * width;
      if (weights_.embedding)
        std::copy_n(weights_.embedding + in_.token_ids[row] * width, width, to);
      else
        unpack_row(weights_.head, in_.token_ids[row], to);
    });
    end_phase(Part::Elementwise);
  }

  // What a part of a layer reads: the residual stream, normed where there is a norm.
  const T* normed(const T* weight) {
    if (!weight) return at_.residual;
    const int64_t width = shape_.hidden;
    rms_norm(member_, at_.residual, width, weight, shape_.norm_eps, at_.normed, width, in_.rows,
             width);
    end_phase(Part::Elementwise);
    return at_.normed;
  }

  // y = x W^T + b, or y += that, and then what each row's adapter adds to each of the modules.
  void linear(const PackedWeight<T>& weight, const T* x, T* y, bool add, int64_t layer,
              std::initializer_list<Slice> slices) {
    const LoraLinear lora{layer, weight.in, slices.begin(), static_cast<int64_t>(slices.size())};
    const RowsOf<T> rows{x, weight.in, in_.rows, at_.quantised, at_.scales, at_.offsets};
    if (weight.scales) {
      quantise_rows(member_, rows, weight.in);
      end_phase(Part::Elementwise);
    }
    const auto product = [&] {
      multiply(member_, rows, weight, y, weight.out, add);
      clock_.lap(Part::Gemm);
    };
    if (sgmv_.empty()) {
      product();
      end_phase(Part::Gemm);
      return;
    }
    member_.side_by_side(
        [&] {
          sgmv_.shrink(member_, lora, x, weight.in);
          clock_.lap(Part::Sgmv);
        },
        product);
    end_phase(Part::Gemm);
    sgmv_.expand(member_, lora, y, weight.out);
    end_phase(Part::Sgmv);
  }

  // What a part of a layer adds to the residual stream, normed where there is a norm.
  void add_linear(const PackedWeight<T>& weight, const T* x, const T* norm, int64_t layer,
                  Slice slice) {
    if (!norm) {
      linear(weight, x, at_.residual, true, layer, {slice});
      return;
    }
    const int64_t width = shape_.hidden;
    linear(weight, x, at_.normed, false, layer, {slice});
    add_normed(member_, at_.normed, width, norm, shape_.norm_eps, at_.residual, width, in_.rows,
               width);
    end_phase(Part::Elementwise);
  }

  void norm_groups(T* x, int64_t width, const GroupNorm<T>& norm) {
    rms_norm_heads(member_, x, shape_.qkv_width(), norm.weight, shape_.norm_eps, in_.rows,
                   width / norm.width, norm.width);
  }

  void self_attention(const DecoderLayer<T>& layer, int64_t index, const T* x) {
    const int64_t query = shape_.query_width(), kv = shape_.kv_width();
    linear(layer.qkv, x, at_.qkv, false, index,
           {{QKV, 0, query}, {QKV + 1, query, kv}, {QKV + 2, query + kv, kv}});
    const int64_t stride = shape_.qkv_width(), head_dim = shape_.head_dim;
    if (layer.query_norm.weight) {
      norm_groups(at_.qkv, query, layer.query_norm);
      norm_groups(at_.qkv + query, kv, layer.key_norm);
      end_phase(Part::Elementwise);
    }
    rope_and_write<T>(member_, {{at_.qkv, stride, head_dim},
                                {at_.qkv + query, stride, head_dim},
                                {at_.qkv + query + kv, stride, head_dim},
                                in_.rows,
                                shape_.heads,
                                layer.rope.cos,
                                layer.rope.sin,
                                layer.rope.half,
                                in_.positions,
                                in_.pages,
                                index,
                                in_.slots});
    end_phase(Part::Elementwise);
    attend_to_pages(index);
    add_linear(layer.out, at_.attended, layer.attention_out, index, {OUT, 0, shape_.hidden});
  }

  void attend_to_pages(int64_t index) {
    const int64_t head_dim = shape_.head_dim;
    const KVPages<T>& p = in_.pages;
    const AttentionArguments<T> arguments{
        {at_.qkv, shape_.qkv_width(), head_dim},
        {p.pool, p.num_layers, p.block_tokens, p.kv_heads, p.head_dim},
        index,
        shape_.attention_scale,
        {at_.attended, shape_.query_width(), head_dim}};
    attend(member_, attention_, arguments);
    end_phase(Part::Attention);
    if (attention_.is_split()) {
      combine(member_, attention_, arguments);
      end_phase(Part::Attention);
    }
  }

  void feed_forward(const DecoderLayer<T>& layer, int64_t index, const T* x) {
    const int64_t width = shape_.intermediate;
    linear(layer.gate_up, x, at_.gate_up, false, index,
           {{GATE_UP, 0, width}, {GATE_UP + 1, width, width}});
    silu_mul(member_, at_.gate_up, 2 * width, at_.activated, width, in_.rows, width);
    end_phase(Part::Elementwise);
    add_linear(layer.down, at_.activated, layer.mlp_out, index, {DOWN, 0, shape_.hidden});
  }

  // The LM head, for the rows that want it only.
  void head() {
    const int64_t width = shape_.hidden, rows = in_.num_wanted;
    const PackedWeight<T>& weight = weights_.head;
    if (rows == 0) return;
    member_.deal(rows, [&](int64_t i) {
      std::copy_n(at_.residual + in_.wanted[i] * width, width, at_.normed + i * width);
    });
    end_phase(Part::Head);
    rms_norm(member_, at_.normed, width, weights_.final_norm, shape_.norm_eps, at_.normed, width,
             rows, width);
    end_phase(Part::Head);
    const RowsOf<T> x{at_.normed, width, rows, at_.quantised, at_.scales, at_.offsets};
    if (weight.scales) {
      quantise_rows(member_, x, width);
      end_phase(Part::Head);
    }
    multiply(member_, x, weight, logits_, weight.out);
    end_phase(Part::Head);
    if (!tokens_) return;
    member_.deal(rows, [&](int64_t i) {
      const T* row = logits_ + i * weight.out;
      const int64_t mask = in_.mask_of ? in_.mask_of[i] : -1, words = (weight.out + 31) / 32;
      const auto* allowed = reinterpret_cast<const uint32_t*>(in_.masks) + mask * words;
      tokens_[i] =
          mask < 0 ? likeliest(row, weight.out) : likeliest(row, weight.out, allowed);
    });
    end_phase(Part::Sampling);
  }
};

// One allocation, cut up; each part begins on a cache line.
template <typename T>
typename Decoder<T>::Buffers Decoder<T>::buffers(int64_t rows) {
  const int64_t item = sizeof(T), hidden = shape_.hidden, inner = shape_.intermediate;
  const int64_t widest = std::max({hidden, inner, shape_.query_width()});
  const int64_t row_bytes[] = {hidden * item, hidden * item, shape_.qkv_width() * item,
                               shape_.query_width() * item, 2 * inner * item, inner * item,
                               widest, groups_of(widest) * 4, groups_of(widest) * 4};
  constexpr int64_t LINE = 64;
  const auto whole_lines = [](int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; };
  if (rows > workspace_rows_) {
    int64_t total = 0;
    for (const int64_t bytes : row_bytes) total += whole_lines(rows * bytes);
    workspace_rows_ = 0;
    workspace_.reset(static_cast<char*>(std::aligned_alloc(LINE, total)));
    if (!workspace_) throw std::bad_alloc();
    workspace_rows_ = rows;
  }
  char* next = workspace_.get();
  const int64_t* bytes = row_bytes;
  const auto take = [&] { return std::exchange(next, next + whole_lines(rows * *bytes++)); };
  const auto take_rows = [&] { return reinterpret_cast<T*>(take()); };
  return {take_rows(), take_rows(), take_rows(), take_rows(), take_rows(), take_rows(),
          reinterpret_cast<int8_t*>(take()), reinterpret_cast<float*>(take()),
          reinterpret_cast<int32_t*>(take())};
}

// What a step of many drafts takes beyond this is given back after it.
constexpr size_t KEPT_LOGITS_BYTES = 32 << 20;

template <typename T>
bool Decoder<T>::next_tokens(const StepInputs<T>& inputs, int64_t* tokens, int threads,
                             Progress<T>* progress) {
  const size_t needed = inputs.num_wanted * shape_.vocab;
  if (logits_.size() < needed) {
    logits_ = {};  // never both at once, nor more than needed
    logits_ = std::vector<T>(needed);
  }
  const bool ended = step(inputs, logits_.data(), tokens, threads, progress);
  if (needed * sizeof(T) > KEPT_LOGITS_BYTES) logits_ = {};
  return ended;
}

template <typename T>
bool Decoder<T>::step(const StepInputs<T>& inputs, T* logits, int64_t* tokens, int threads,
                      Progress<T>* progress) {
  if (inputs.rows == 0) return true;
  attention_.make(inputs.attention, attention_shape(inputs.pages.block_tokens), threads);
  sgmv_.begin(inputs.adapters, inputs.row_slot, inputs.rows, threads);
  Buffers at = buffers(std::max(inputs.rows, inputs.num_wanted));
  Progress<T> at_once{at.residual, 0, nullptr};
  Progress<T>& so_far = progress ? *progress : at_once;
  at.residual = so_far.residual;
  bool pausing = false;
  run_team(threads, [&](Member& member) {
    Step(*this, inputs, at, logits, tokens, so_far, pausing, member).run();
  });
  return !pausing;
}

template <typename T>
PartSeconds Decoder<T>::take_seconds() {
  return std::exchange(seconds_, PartSeconds{});
}

template class Decoder<float>;
template class Decoder<bf16>;

}  // namespace tenora
