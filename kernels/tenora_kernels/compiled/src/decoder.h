// A decoder: all layers of one step in one region of threads. No torch in here.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "pages.h"
#include "sgmv.h"

namespace tenora {

struct DecoderShape {
  int64_t hidden, intermediate, heads, kv_heads, head_dim, vocab;
  float norm_eps, attention_scale;

  int64_t query_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
};

// Cosines and sines by position: [max_positions, half] each, half of the dimensions they turn; none
// where half is 0.
struct RopeTable {
  const float* cos;
  const float* sin;
  int64_t half;
};

// A norm of so many neighbours of a row at a time, or of none where `weight` is null.
template <typename T>
struct GroupNorm {
  const T* weight;  // [width]
  int64_t width;
};

// Norms [hidden] of what attention and the MLP read (`_in`), and of what they add to the residual
// stream (`_out`); null where there is none.
template <typename T>
struct DecoderLayer {
  const T *attention_in, *attention_out, *mlp_in, *mlp_out;
  GroupNorm<T> query_norm, key_norm;  // of heads, or of a whole row
  RopeTable rope;
  PackedWeight<T> qkv, out, gate_up, down;
};

template <typename T>
struct DecoderWeights {
  const T* embedding;  // [vocab, hidden], or null: read from the head's packed form
  std::vector<DecoderLayer<T>> layers;
  const T* final_norm;
  PackedWeight<T> head;
};

// One flat ragged batch: the rows of each sequence side by side, oldest first.
template <typename T>
struct StepInputs {
  int64_t rows;
  const int64_t* token_ids;  // [rows]
  const int64_t* positions;  // [rows]
  const int64_t* slots;      // [rows], page * block_tokens + offset, where the row's KV goes
  const int32_t* row_slot;   // [rows], negative where a row has no adapter
  AdapterTable adapters;
  KVPages<T> pages;
  AttentionBatch attention;
  const int64_t* wanted;  // [num_wanted], the rows whose next token is asked for
  int64_t num_wanted;
  const int32_t* mask_of;  // [num_wanted], negative where a row has no mask; null: none has
  const int32_t* masks;    // [num_masks, ceil(vocab / 32)], which tokens may be chosen, a bit each
};

// Where the calling thread's time went.
enum class Part { Gemm, Sgmv, Attention, Elementwise, Head, Waiting, Sampling };
constexpr int PARTS = 7;
using PartSeconds = std::array<double, PARTS>;

// How far a step has come. Between two layers it is the residual stream and nothing else.
template <typename T>
struct Progress {
  T* residual;  // [rows, hidden]
  size_t layer = 0;  // the next
  const int32_t* pause;  // while it is not 0 the step stops after the layer at work
};

template <typename T>
class Decoder {
 public:
  Decoder(const DecoderShape& shape, DecoderWeights<T> weights)
      : shape_(shape), weights_(std::move(weights)) {}

  // Writes the step's KV into the pages, and the wanted rows' logits [num_wanted, vocab] or their
  // likeliest tokens [num_wanted]. Only one thread may call them at a time. Throws
  // std::invalid_argument when the attention batch does not fit together. With `progress` they go on
  // where it is, and return false where they stopped before the end: other steps may be run before
  // the next call, with the same inputs.
  bool next_logits(const StepInputs<T>& inputs, T* logits, int threads,
                   Progress<T>* progress = nullptr) {
    return step(inputs, logits, nullptr, threads, progress);
  }
  bool next_tokens(const StepInputs<T>& inputs, int64_t* tokens, int threads,
                   Progress<T>* progress = nullptr);

  // By part, since the last call.
  PartSeconds take_seconds();

 private:
  class Step;
  struct Buffers {
    T *residual, *normed, *qkv, *attended, *gate_up, *activated;
    int8_t* quantised;  // of the rows that a product reads
    float* scales;
    int32_t* offsets;
  };

  DecoderShape shape_;
  DecoderWeights<T> weights_;
  AttentionPlan attention_;
  Sgmv sgmv_;
  std::unique_ptr<char, void (*)(void*)> workspace_{nullptr, std::free};
  int64_t workspace_rows_ = 0;
  PartSeconds seconds_{};
  std::vector<T> logits_;  // of a step that wants tokens only

  bool step(const StepInputs<T>& inputs, T* logits, int64_t* tokens, int threads,
            Progress<T>* progress);
  Buffers buffers(int64_t rows);
  AttentionShape attention_shape(int64_t block_tokens) const {
    return {shape_.heads, shape_.kv_heads, shape_.head_dim, block_tokens};
  }
};

}  // namespace tenora
