// Each row's own LoRA update, the weights read in place in the page arena. No torch in here.
//
// Once per step, outside the parallel region:
//
//     Sgmv sgmv;                                   // kept from step to step: owns the workspace
//     sgmv.begin(table, row_slot, num_rows, threads);
//
// Then for each linear of each layer, by every member of the team:
//
//     sgmv.shrink(member, linear, x, x_stride);    // h = scale * x A^T; deals one list of tasks
//     member.barrier();                            // other ops may share either phase
//     sgmv.expand(member, linear, y, y_stride);    // y += h B; deals one list of tasks
//     member.barrier();
//
// `expand` adds to what y holds, so whatever writes y belongs before the first barrier. Both
// return at once when no row has an adapter (`empty`). No other linear may be shrunk between the
// shrink of a linear and the barrier after its expansion: they share the workspace.
//
// Every sum runs over its terms in one order. A row's result has the same bits for any number of
// threads, in any batch, and in a run of any length.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "team.h"
#include "vectors.h"

namespace tenora {

// Where the adapters' weights lie in the arena. Offsets count elements.
struct AdapterTable {
  const void* pool;
  const int64_t* granule_offset;  // [slots, layers, max_rank]
  const int32_t* rank;            // [slots, layers, modules]
  const int32_t* a_offset;
  const int32_t* b_offset;
  const float* scale;
  int64_t layers, max_rank, modules;
  bool int8 = false;  // elements are int8, a row's float32 scale right before it; else those of x
};

// One module's columns of y.
struct Slice {
  int64_t module;
  int64_t column;
  int64_t width;
};

// The modules of one layer that read the same x.
struct LoraLinear {
  int64_t layer;
  int64_t in_features;
  const Slice* slices;
  int64_t num_slices;
};

class Sgmv {
 public:
  // Takes the step's rows; `row_slot` is negative where a row has no adapter. At most `members`
  // threads will work on it.
  void begin(const AdapterTable& table, const int32_t* row_slot, int64_t num_rows, int members);

  bool empty() const { return segments_.empty(); }

  // Bytes of weights that this linear reads, each run of rows on its own.
  int64_t weight_bytes(const LoraLinear& linear, int64_t element_bytes) const;

  template <typename T>
  void shrink(Member& member, const LoraLinear& linear, const T* x, int64_t x_stride);

  template <typename T>
  void expand(Member& member, const LoraLinear& linear, T* y, int64_t y_stride);

  // Rows of one adapter, next to each other.
  struct Segment {
    int32_t row, rows, slot;
  };

  // What is read of one matrix: units of equal cost, of which a task takes some.
  struct Side {
    int64_t offset;  // within the granule
    int64_t length;  // elements of a rank row
    int64_t strip;   // of them, read at a time
    int64_t units, unit_cost;
  };

  // One segment's update by one module.
  struct Part {
    int64_t row, rows, rank;
    const int64_t* granules;
    float* h;          // [rows, h_stride], zeros where a row is longer than the rank
    int64_t h_stride;  // the rank, made whole blocks
    float scale;
    int64_t column;  // of y
    Side a, b;
  };

  // Where a task begins; it ends where the next begins.
  struct Start {
    int64_t part, unit;
  };

  // One member's own copy of the plan for the linear at work: making it costs less than sharing it.
  struct alignas(64) Plan {
    std::vector<Part> parts;
    std::vector<Start> shrinks, expansions;
    std::unique_ptr<Lanes[]> scratch;
    int64_t scratch_size = 0;
  };

 private:
  AdapterTable table_{};
  std::vector<Segment> segments_;
  std::unique_ptr<float[]> h_;
  int64_t h_floats_ = 0;
  std::vector<Plan> plans_;

  void make_parts(Plan& plan, const LoraLinear& linear, int members);
  template <typename T, typename W>
  void shrink_from(Member& member, const T* x, int64_t x_stride);
  template <typename T, typename W>
  void expand_from(Member& member, T* y, int64_t y_stride);
};

}  // namespace tenora
