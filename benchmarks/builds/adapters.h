// Where adapters lie in the arena's pages, as the engine's `pack_adapter` lays them out. A source
// tree with another layout has its own in its benchmarks/builds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "decoder.h"
#include "random.h"

class Adapters {
 public:
  // All modules of all layers of adapter i have the rank ranks[i].
  Adapters(const tenora::DecoderShape& shape, int64_t layers, const int32_t* ranks, int64_t count)
      : modules_(modules_of(shape)), layers_(layers), ranks_(ranks, ranks + count) {
    place_rows();
  }

  // The sum of the adapters' pages, none of which two adapters share.
  int64_t num_pages(int64_t page_elements) const {
    const int64_t held = page_elements / granule_;
    int64_t pages = 0;
    for (const int32_t rank : ranks_) pages += (layers_ * rank + held - 1) / held;
    return pages;
  }
  int64_t bytes() const {
    int64_t rank_rows = 0;
    for (const int32_t rank : ranks_) rank_rows += rank;
    return rank_rows * layers_ * granule_ * sizeof(tenora::bf16);
  }

  // Writes all adapters into `pages` of the arena, in the order in which they stand there.
  void write(tenora::bf16* arena, int64_t page_elements, const int64_t* pages) {
    const int64_t held = page_elements / granule_;
    const int64_t max_rank = std::max(MAX_RANK, *std::max_element(ranks_.begin(), ranks_.end()));
    arena_ = arena;
    max_rank_ = max_rank;
    granule_offset_.assign(ranks_.size() * layers_ * max_rank, -1);
    rank_.clear(), a_offset_.clear(), b_offset_.clear();
    for (size_t slot = 0; slot < ranks_.size(); ++slot) {
      const int64_t rank = ranks_[slot];
      int64_t* places = &granule_offset_[slot * layers_ * max_rank];
      for (int64_t i = 0; i < layers_ * rank; ++i)
        places[i / rank * max_rank + i % rank] =
            pages[i / held] * page_elements + i % held * granule_;
      pages += (layers_ * rank + held - 1) / held;
#pragma omp parallel for
      for (int64_t layer = 0; layer < layers_; ++layer)
        for (int64_t row = 0; row < rank; ++row)
          write_granule(arena + places[layer * max_rank + row], slot, layer, row);
      for (int64_t layer = 0; layer < layers_; ++layer)
        for (const Module& module : modules_) {
          rank_.push_back(ranks_[slot]);
          a_offset_.push_back(module.a);
          b_offset_.push_back(module.b);
        }
    }
    scale_.assign(rank_.size(), 0.5f);
  }

  tenora::AdapterTable table() const {
    return {arena_,           granule_offset_.data(), rank_.data(), a_offset_.data(),
            b_offset_.data(), scale_.data(),          layers_,      max_rank_,
            static_cast<int64_t>(modules_.size())};
  }

 private:
  static constexpr int32_t MAX_RANK = 64;  // room in the table, as in an engine's

  struct Module {
    int64_t in, out;
    int32_t a = 0, b = 0;  // where its rows begin in a granule
  };
  std::vector<Module> modules_;
  int64_t layers_, granule_ = 0, max_rank_ = 0;
  std::vector<int32_t> ranks_;
  const tenora::bf16* arena_ = nullptr;
  std::vector<int64_t> granule_offset_;
  std::vector<int32_t> rank_, a_offset_, b_offset_;
  std::vector<float> scale_;

  // q, k, v, o, gate, up, down
  static std::vector<Module> modules_of(const tenora::DecoderShape& shape) {
    const int64_t hidden = shape.hidden, inner = shape.intermediate;
    const int64_t query = shape.query_width(), kv = shape.kv_width();
    return {{hidden, query}, {hidden, kv},    {hidden, kv},   {query, hidden},
            {hidden, inner}, {hidden, inner}, {inner, hidden}};
  }

  // Of the modules that one call reads, all A rows and then all B rows.
  void place_rows() {
    constexpr int CALLS[][2] = {{0, 3}, {3, 4}, {4, 6}, {6, 7}};
    for (const auto& [first, last] : CALLS) {
      for (int m = first; m < last; ++m) {
        modules_[m].a = granule_;
        granule_ += modules_[m].in;
      }
      for (int m = first; m < last; ++m) {
        modules_[m].b = granule_;
        granule_ += modules_[m].out;
      }
    }
  }

  void write_granule(tenora::bf16* granule, int64_t slot, int64_t layer, int64_t row) const {
    for (size_t m = 0; m < modules_.size(); ++m) {
      const auto name = [&](int64_t side) {
        return name_of(Kind::Adapter, {slot, layer, static_cast<int64_t>(m), side, row});
      };
      const Module& module = modules_[m];
      fill(granule + module.a, module.in, name(0), 1 / std::sqrt(module.in));
      fill(granule + module.b, module.out, name(1), 1 / std::sqrt(module.in));
    }
  }
};
