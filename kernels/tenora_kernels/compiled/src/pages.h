// Where the heads of a projection and the keys and values of the page arena lie.
#pragma once

#include <cstdint>

namespace tenora {

// [rows, heads, head_dim], a head dense; strides count elements.
template <typename T>
struct HeadRows {
  T* data;
  int64_t row_stride;
  int64_t head_stride;

  T* at(int64_t row, int64_t head) const { return data + row * row_stride + head * head_stride; }
};

// The arena: pages of [layer, 2, block_tokens, kv_heads, head_dim].
template <typename T>
struct KVPages {
  T* pool;
  int64_t num_layers, block_tokens, kv_heads, head_dim;

  int64_t line() const { return kv_heads * head_dim; }
  int64_t block() const { return block_tokens * line(); }
  // One layer's key lines of a page; the value lines follow `block()` elements later.
  T* keys(int64_t page, int64_t layer) const {
    return pool + (page * num_layers + layer) * 2 * block();
  }
};

}  // namespace tenora
