// A trained draft layer: chains of tokens that may follow. Each is made of the token before it and of
// what the layer made of that one, at first the decoder. The layer has no KV of its own: it attends
// to that of the decoder's last layer (GliDe, Du et al. 2024). No torch in here.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "decoder.h"
#include "gemm.h"
#include "pages.h"

namespace tenora {

template <typename T>
struct DraftWeights {
  const T* embedding;      // the decoder's, see DecoderWeights
  PackedWeight<T> lm_head;  // and its head, where that is read for the embedding
  const T* base_norm;      // [hidden], the decoder's final one
  const T *embedding_norm, *state_norm, *attention_norm, *mlp_norm, *final_norm;  // [hidden]
  PackedWeight<T> join;    // of an embedding and a state side by side
  PackedWeight<T> query, out, gate_up, down;
  PackedWeight<T> head;    // of some tokens:
  const int64_t* vocabulary;  // [head.out]
  RopeTable rope;
  int64_t max_positions;
};

template <typename T>
struct DraftInputs {
  int64_t rows;
  const T* residual;         // [tokens, hidden], behind the decoder's last layer
  const int64_t* last;       // [rows], of those tokens the one before each row's
  const int64_t* token_ids;  // [rows], the ones from which the chains go on
  const int64_t* positions;  // [rows], of them
  KVPages<T> pages;
  const int32_t* block_table;  // [rows, max_blocks], pages of all before them
  int64_t max_blocks, num_pages;
  int64_t count;       // tokens of a chain, at most
  float least_chance;  // of all of a chain's tokens together, as the layer has it
};

template <typename T>
class DraftLayer {
 public:
  DraftLayer(const DecoderShape& shape, const DraftWeights<T>& weights)
      : shape_(shape), weights_(weights) {}

  // The likeliest chain of each row into `chains` [rows, count], and how long each is into `lengths`
  // [rows]: up to where it is less likely than `least_chance`. One thread at a time may call it.
  // Throws std::invalid_argument when pages or positions do not fit together.
  void propose(const DraftInputs<T>& inputs, int64_t* chains, int64_t* lengths, int threads);

 private:
  class Chain;

  DecoderShape shape_;
  DraftWeights<T> weights_;
  AttentionPlan attention_;
  std::vector<T> state_, embedded_, joined_, residual_, normed_, query_, attended_, gate_up_,
      activated_, logits_;
  std::vector<int8_t> quantised_;
  std::vector<float> scales_, chance_;
  std::vector<int32_t> offsets_, query_start_, context_len_;
  std::vector<int64_t> token_ids_, positions_;

  void reserve(int64_t rows);
};

}  // namespace tenora
