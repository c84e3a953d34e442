// The ops as torch sees them: checks what is handed over, and lends torch's threads.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "sgmv.h"

namespace {

using at::Tensor;

void run_on_threads(int threads, const std::function<void()>& work) {
  if (threads <= 1) {
    work();
    return;
  }
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) work();
  });
}

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

void sgmv(const Tensor& y, const Tensor& x, const Tensor& pool, const Tensor& granule_offset,
          const Tensor& rank, const Tensor& a_offset, const Tensor& b_offset, const Tensor& scale,
          const Tensor& row_slot, int64_t longest_run, int64_t layer, at::IntArrayRef modules,
          at::IntArrayRef widths) {
  tenora::SgmvArguments p;
  int64_t columns = 0;
  TORCH_CHECK(rank.dim() == 3 && granule_offset.dim() == 3, "adapter table: wrong shape");
  TORCH_CHECK(modules.size() == widths.size(), "sgmv: modules and widths differ in length");
  for (size_t i = 0; i < modules.size(); ++i) {
    TORCH_CHECK(modules[i] >= 0 && modules[i] < rank.size(2) && widths[i] >= 0, "sgmv: modules");
    p.slices.push_back({modules[i], columns, widths[i]});
    columns += widths[i];
  }
  TORCH_CHECK(x.dim() == 2 && row_slot.dim() == 1, "sgmv: wrong shape");
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
  TORCH_CHECK(pool.dim() == 1 && pool.is_contiguous() && pool.scalar_type() == x.scalar_type(),
              "sgmv: pool");
  TORCH_CHECK(layer >= 0 && layer < rank.size(1), "sgmv: layer");
  p.y = y.data_ptr();
  p.y_stride = y.stride(0);
  p.x = x.const_data_ptr();
  p.x_stride = x.stride(0);
  p.in_features = x.size(1);
  p.num_rows = row_slot.size(0);
  p.pool = pool.const_data_ptr();
  p.granule_offset = granule_offset.const_data_ptr<int64_t>();
  p.rank = rank.const_data_ptr<int32_t>();
  p.a_offset = a_offset.const_data_ptr<int32_t>();
  p.b_offset = b_offset.const_data_ptr<int32_t>();
  p.scale = scale.const_data_ptr<float>();
  p.layers = rank.size(1);
  p.max_rank = granule_offset.size(2);
  p.modules = rank.size(2);
  p.row_slot = row_slot.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < p.num_rows; ++i)
    TORCH_CHECK(p.row_slot[i] < rank.size(0), "sgmv: slot");
  p.longest_run = longest_run;
  p.layer = layer;
  const int threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  if (x.scalar_type() == at::kBFloat16) {
    tenora::sgmv<tenora::bf16>(p, threads, run_on_threads);
  } else {
    TORCH_CHECK(x.scalar_type() == at::kFloat, "sgmv: dtype");
    tenora::sgmv<float>(p, threads, run_on_threads);
  }
}

}  // namespace

TORCH_LIBRARY(tenora, library) {
  library.def(
      "sgmv(Tensor(a!) y, Tensor x, Tensor pool, Tensor granule_offset, Tensor rank, "
      "Tensor a_offset, Tensor b_offset, Tensor scale, Tensor row_slot, int longest_run, "
      "int layer, int[] modules, int[] widths) -> ()");
}

TORCH_LIBRARY_IMPL(tenora, CPU, library) { library.impl("sgmv", &sgmv); }
