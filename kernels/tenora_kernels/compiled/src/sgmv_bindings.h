// The product with adapters as torch sees it: checks what is handed over, lends torch's threads.
#pragma once

#include <algorithm>
#include <vector>

#include "adapter_check.h"
#include "torch_tensors.h"

namespace {

void check_table(const Tensor& tensor, const Tensor& rank, at::ScalarType type) {
  TORCH_CHECK(tensor.scalar_type() == type && tensor.is_contiguous() && tensor.device().is_cpu() &&
                  tensor.sizes() == rank.sizes(),
              "adapter table: wrong dtype, shape or strides");
}

void check_rows(const Tensor& tensor, const Tensor& x, int64_t rows, int64_t columns) {
  TORCH_CHECK(tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns &&
                  (tensor.stride(1) == 1 || columns <= 1) && tensor.device().is_cpu() &&
                  tensor.scalar_type() == x.scalar_type(),
              "sgmv: wrong shape, dtype, strides or device");
}

// One linear alone, in a region of its own.
template <typename T>
void run_sgmv(const tenora::AdapterTable& table, const Tensor& row_slot,
              const tenora::LoraLinear& linear, const Tensor& x, const Tensor& y) {
  constexpr int64_t BYTES_PER_THREAD = 64 * 1024;  // less is done before one wakes
  thread_local tenora::Sgmv workspace;
  const int allowed = at::get_num_threads();
  workspace.begin(table, row_slot.const_data_ptr<int32_t>(), row_slot.size(0), allowed);
  const int64_t bytes = workspace.weight_bytes(linear, table.int8 ? 1 : sizeof(T));
  const int threads = std::min<int64_t>(allowed, 1 + bytes / BYTES_PER_THREAD);
  const T* from = static_cast<const T*>(x.const_data_ptr());
  T* to = static_cast<T*>(y.data_ptr());
  tenora::run_team(threads, [&, op = &workspace](tenora::Member& member) {
    op->shrink(member, linear, from, x.stride(0));
    member.barrier();
    op->expand(member, linear, to, y.stride(0));
  });
}

void sgmv(const Tensor& y, const Tensor& x, const Tensor& pool, const Tensor& granule_offset,
          const Tensor& rank, const Tensor& a_offset, const Tensor& b_offset, const Tensor& scale,
          const Tensor& row_slot, int64_t layer, at::IntArrayRef modules,
          at::IntArrayRef widths) {
  std::vector<tenora::Slice> slices;
  std::vector<tenora::ModuleShape> shapes;
  int64_t columns = 0;
  TORCH_CHECK(x.dim() == 2 && x.size(1) > 0 && row_slot.dim() == 1, "sgmv: wrong shape");
  TORCH_CHECK(rank.dim() == 3 && granule_offset.dim() == 3, "adapter table: wrong shape");
  TORCH_CHECK(modules.size() == widths.size(), "sgmv: modules and widths differ in length");
  for (size_t i = 0; i < modules.size(); ++i) {
    TORCH_CHECK(modules[i] >= 0 && modules[i] < rank.size(2) && widths[i] >= 0, "sgmv: modules");
    slices.push_back({modules[i], columns, widths[i]});
    shapes.push_back({modules[i], x.size(1), widths[i]});
    columns += widths[i];
  }
  check_rows(x, x, row_slot.size(0), x.size(1));
  check_rows(y, x, row_slot.size(0), columns);
  check_table(rank, rank, at::kInt);
  check_table(a_offset, rank, at::kInt);
  check_table(b_offset, rank, at::kInt);
  check_table(scale, rank, at::kFloat);
  TORCH_CHECK(granule_offset.scalar_type() == at::kLong && granule_offset.is_contiguous() &&
                  granule_offset.size(0) == rank.size(0) && granule_offset.size(1) == rank.size(1),
              "adapter table: granule_offset");
  TORCH_CHECK(row_slot.scalar_type() == at::kInt && row_slot.is_contiguous(), "sgmv: row_slot");
  TORCH_CHECK(pool.dim() == 1 && pool.is_contiguous() &&
                  (pool.scalar_type() == x.scalar_type() || pool.scalar_type() == at::kChar),
              "sgmv: pool");
  TORCH_CHECK(layer >= 0 && layer < rank.size(1), "sgmv: layer");
  const tenora::AdapterTable table{
      pool.const_data_ptr(),
      granule_offset.const_data_ptr<int64_t>(),
      rank.const_data_ptr<int32_t>(),
      a_offset.const_data_ptr<int32_t>(),
      b_offset.const_data_ptr<int32_t>(),
      scale.const_data_ptr<float>(),
      rank.size(1),
      granule_offset.size(2),
      rank.size(2),
      pool.scalar_type() == at::kChar,
  };
  const int32_t* slots = row_slot.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < row_slot.size(0); ++i) {
    TORCH_CHECK(slots[i] < rank.size(0), "sgmv: slot");
    if (slots[i] < 0 || (i > 0 && slots[i] == slots[i - 1])) continue;
    tenora::check_adapter(table, pool.size(0), slots[i], layer, layer + 1, shapes);
  }
  const tenora::LoraLinear linear{layer, x.size(1), slices.data(),
                                  static_cast<int64_t>(slices.size())};
  if (x.scalar_type() == at::kBFloat16) {
    run_sgmv<tenora::bf16>(table, row_slot, linear, x, y);
  } else {
    TORCH_CHECK(x.scalar_type() == at::kFloat, "sgmv: dtype");
    run_sgmv<float>(table, row_slot, linear, x, y);
  }
}

}  // namespace

TORCH_LIBRARY(tenora, library) {
  library.def(
      "sgmv(Tensor(a!) y, Tensor x, Tensor pool, Tensor granule_offset, Tensor rank, "
      "Tensor a_offset, Tensor b_offset, Tensor scale, Tensor row_slot, "
      "int layer, int[] modules, int[] widths) -> ()");
}

TORCH_LIBRARY_IMPL(tenora, CPU, library) { library.impl("sgmv", &sgmv); }
