#include "adapter_check.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace tenora {
namespace {

// The lowest and the highest place of a granule's beginning.
struct Places {
  int64_t low = std::numeric_limits<int64_t>::max();
  int64_t high = std::numeric_limits<int64_t>::min();

  Places(const int64_t* granules, int64_t rank) {
    for (int64_t r = 0; r < rank; ++r) {
      low = std::min(low, granules[r]);
      high = std::max(high, granules[r]);
    }
  }
};

bool lies_inside(const AdapterTable& table, int64_t elements, int64_t place,
                 const std::vector<ModuleShape>& modules) {
  const int64_t* granules = table.granule_offset + place * table.max_rank;
  const int64_t scale = table.int8 ? sizeof(float) : 0;
  int64_t rank_seen = 0;
  Places places(granules, 0);
  for (const ModuleShape& shape : modules) {
    const int64_t entry = place * table.modules + shape.module;
    const int64_t rank = table.rank[entry];
    if (rank == 0) continue;
    if (rank < 0 || rank > table.max_rank) return false;
    if (rank != rank_seen) places = Places(granules, rank);  // most often all modules' ranks agree
    rank_seen = rank;
    const int64_t a = table.a_offset[entry], b = table.b_offset[entry];
    if (places.low < scale - std::min(a, b) ||
        places.high > elements - std::max(a + shape.in, b + shape.out))
      return false;
  }
  return true;
}

}  // namespace

void check_adapter(const AdapterTable& table, int64_t elements, int64_t slot, int64_t first_layer,
                   int64_t last_layer, const std::vector<ModuleShape>& modules) {
  for (int64_t layer = first_layer; layer < last_layer; ++layer)
    if (!lies_inside(table, elements, slot * table.layers + layer, modules))
      throw std::invalid_argument("an adapter's weights lie outside the arena");
}

}  // namespace tenora
