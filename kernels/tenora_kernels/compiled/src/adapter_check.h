// Looks at an adapter's places in the arena before its weights are read there. No torch in here.
#pragma once

#include <cstdint>
#include <vector>

#include "sgmv.h"

namespace tenora {

struct ModuleShape {
  int64_t module, in, out;
};

// Throws std::invalid_argument unless all weights of a slot's adapter for these modules, in layers
// first..last - 1, lie among the arena's `elements`.
void check_adapter(const AdapterTable& table, int64_t elements, int64_t slot, int64_t first_layer,
                   int64_t last_layer, const std::vector<ModuleShape>& modules);

}  // namespace tenora
