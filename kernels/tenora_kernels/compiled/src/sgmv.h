// Each row's own LoRA update, the weights read in place in the page arena. No torch in here.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "vectors.h"

namespace tenora {

// One slice of y and the module it belongs to.
struct Slice {
  int64_t module;
  int64_t column;
  int64_t width;
};

// What a call works on. Strides and offsets count elements.
struct SgmvArguments {
  void* y;
  int64_t y_stride;
  const void* x;
  int64_t x_stride;
  int64_t in_features;
  int64_t num_rows;
  const void* pool;
  const int64_t* granule_offset;  // [slots, layers, max_rank]
  const int32_t* rank;            // [slots, layers, modules]
  const int32_t* a_offset;
  const int32_t* b_offset;
  const float* scale;
  int64_t layers, max_rank, modules;
  const int32_t* row_slot;  // [num_rows], negative: no adapter
  int64_t longest_run;      // longer runs of one adapter are left to someone else
  int64_t layer;
  std::vector<Slice> slices;
};

// Calls `work` on up to `threads` threads at once and returns when all have returned.
using RunOnThreads = std::function<void(int threads, const std::function<void()>& work)>;

template <typename T>
void sgmv(const SgmvArguments& arguments, int threads, const RunOnThreads& run);

}  // namespace tenora
