// Attention, rope and norms as torch sees them: each checks what is handed over and runs alone.
#pragma once

#include "attention.h"
#include "norms.h"
#include "rope.h"
#include "torch_tensors.h"

namespace {

// A thread more pays from about this many elements of an elementwise op.
constexpr int64_t ELEMENTS_PER_THREAD = 16384;

int threads_for(int64_t elements) {
  return std::clamp<int64_t>(elements / ELEMENTS_PER_THREAD, 1, at::get_num_threads());
}

// Calls work(T{}) with the tensor's element type.
template <typename Work>
void by_type(const Tensor& tensor, Work&& work) {
  if (tensor.scalar_type() == at::kBFloat16) return work(bf16{});
  TORCH_CHECK(tensor.scalar_type() == at::kFloat, "needs float32 or bfloat16");
  work(float{});
}

void check_like(const Tensor& tensor, const Tensor& reference, int64_t dims) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == reference.scalar_type() &&
                  tensor.dim() == dims &&
                  (tensor.numel() == 0 || tensor.size(-1) == 1 || tensor.stride(-1) == 1),
              "wrong dtype, axes, strides or device");
}

void check_index(const Tensor& tensor, at::ScalarType type, int64_t dims) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == type && tensor.dim() == dims &&
                  tensor.is_contiguous(),
              "an index has the wrong dtype, axes, strides or device");
}

void check_bounds(const Tensor& index, int64_t end, const char* name) {
  const int64_t* values = index.const_data_ptr<int64_t>();
  bool inside = true;
  for (int64_t i = 0; i < index.numel(); ++i) inside &= values[i] >= 0 && values[i] < end;
  TORCH_CHECK(inside, name, " has values outside 0..", end - 1);
}

void check_pages(const Tensor& pool, const Tensor& q, int64_t num_layers, int64_t block_tokens,
                 int64_t kv_heads, int64_t layer) {
  check_like(pool, q, 2);
  check_like(q, q, 3);
  TORCH_CHECK(pool.is_contiguous() && num_layers > 0 && block_tokens > 0 && kv_heads > 0 &&
                  layer >= 0 && layer < num_layers && q.size(2) > 0 &&
                  pool.size(1) == num_layers * 2 * block_tokens * kv_heads * q.size(2),
              "the pool does not fit the layout");
}

template <typename T>
tenora::HeadRows<T> head_rows(const Tensor& tensor) {
  return {data<T>(tensor), tensor.stride(0), tensor.stride(1)};
}

// ---------------------------------------------------------------- norms

// Any leading axes as one; a copy where their strides do not allow it.
Tensor as_rows(const Tensor& x) {
  TORCH_CHECK(x.device().is_cpu() && x.dim() >= 1, "needs rows on the CPU");
  const int64_t width = x.size(-1);
  Tensor rows = x.dim() == 2 ? x : x.reshape({x.numel() / std::max<int64_t>(width, 1), width});
  check_like(rows, x, 2);
  return rows;
}

void check_weight(const Tensor& weight, const Tensor& x) {
  check_like(weight, x, 1);
  TORCH_CHECK(weight.size(0) == x.size(-1), "weight has another width");
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor rows = as_rows(x);
  check_weight(weight, x);
  const Tensor out = at::empty(x.sizes(), x.options());
  by_type(x, [&]<typename T>(T) {
    tenora::run_team(threads_for(x.numel()), [&](tenora::Member& member) {
      tenora::rms_norm<T>(member, data<T>(rows), rows.stride(0), data<T>(weight), eps,
                          data<T>(out), rows.size(1), rows.size(0), rows.size(1));
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& weight, double eps,
                                        const Tensor& residual) {
  const Tensor rows = as_rows(x);
  check_weight(weight, x);
  TORCH_CHECK(residual.sizes() == x.sizes() && residual.scalar_type() == x.scalar_type() &&
                  residual.device().is_cpu(),
              "residual differs from x");
  const Tensor out = at::empty(x.sizes(), x.options());
  const Tensor total = at::empty(x.sizes(), x.options());
  total.copy_(residual);
  by_type(x, [&]<typename T>(T) {
    tenora::run_team(threads_for(x.numel()), [&](tenora::Member& member) {
      tenora::add_rms_norm<T>(member, data<T>(rows), rows.stride(0), data<T>(total), rows.size(1),
                              data<T>(weight), eps, data<T>(out), rows.size(1), rows.size(0),
                              rows.size(1));
    });
  });
  return {out, total};
}

Tensor silu_mul(const Tensor& gate_up) {
  check_like(gate_up, gate_up, 2);
  TORCH_CHECK(gate_up.size(1) % 2 == 0, "gate_up has an odd width");
  const int64_t rows = gate_up.size(0), intermediate = gate_up.size(1) / 2;
  const Tensor out = at::empty({rows, intermediate}, gate_up.options());
  by_type(gate_up, [&]<typename T>(T) {
    tenora::run_team(threads_for(gate_up.numel()), [&](tenora::Member& member) {
      tenora::silu_mul<T>(member, data<T>(gate_up), gate_up.stride(0), data<T>(out), intermediate,
                          rows, intermediate);
    });
  });
  return out;
}

// ---------------------------------------------------------------- keys and values

void kv_write(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos,
              const Tensor& sin, const Tensor& positions, const Tensor& pool, int64_t num_layers,
              int64_t block_tokens, int64_t kv_heads, int64_t layer, const Tensor& slots) {
  check_pages(pool, q, num_layers, block_tokens, kv_heads, layer);
  for (const Tensor& tensor : {k, v}) {
    check_like(tensor, q, 3);
    TORCH_CHECK(tensor.size(0) == q.size(0) && tensor.size(1) == kv_heads &&
                    tensor.size(2) == q.size(2),
                "k or v has the wrong shape");
  }
  check_index(cos, at::kFloat, 2);
  check_index(sin, at::kFloat, 2);
  TORCH_CHECK(sin.sizes() == cos.sizes() && 2 * cos.size(1) <= q.size(2), "cos and sin");
  check_index(positions, at::kLong, 1);
  check_index(slots, at::kLong, 1);
  TORCH_CHECK(positions.size(0) == q.size(0) && slots.size(0) == q.size(0),
              "positions or slots differ in length from q");
  check_bounds(positions, cos.size(0), "positions");
  check_bounds(slots, pool.size(0) * block_tokens, "slots");
  by_type(q, [&]<typename T>(T) {
    const tenora::RopeArguments<T> arguments = {
        head_rows<T>(q),
        head_rows<const T>(k),
        head_rows<const T>(v),
        q.size(0),
        q.size(1),
        cos.const_data_ptr<float>(),
        sin.const_data_ptr<float>(),
        cos.size(1),
        positions.const_data_ptr<int64_t>(),
        {data<T>(pool), num_layers, block_tokens, kv_heads, q.size(2)},
        layer,
        slots.const_data_ptr<int64_t>(),
    };
    tenora::run_team(threads_for(q.numel() + k.numel() + v.numel()), [&](tenora::Member& member) {
      tenora::rope_and_write<T>(member, arguments);
    });
  });
}

void paged_attention(const Tensor& q, const Tensor& pool, int64_t num_layers, int64_t block_tokens,
                     int64_t kv_heads, int64_t layer, const Tensor& query_start,
                     const Tensor& context_len, const Tensor& block_table, double scale,
                     const Tensor& out) {
  check_pages(pool, q, num_layers, block_tokens, kv_heads, layer);
  check_like(out, q, 3);
  TORCH_CHECK(out.sizes() == q.sizes(), "out has another shape than q");
  check_index(query_start, at::kInt, 1);
  check_index(context_len, at::kInt, 1);
  check_index(block_table, at::kInt, 2);
  const int64_t num_seqs = context_len.size(0);
  TORCH_CHECK(query_start.size(0) == num_seqs + 1 && block_table.size(0) == num_seqs,
              "query_start, context_len and block_table differ in length");
  const int32_t* starts = query_start.const_data_ptr<int32_t>();
  TORCH_CHECK(starts[0] == 0 && starts[num_seqs] == q.size(0), "query_start does not cover q");
  thread_local tenora::AttentionPlan plan;  // keeps its memory from layer to layer
  plan.make({starts, context_len.const_data_ptr<int32_t>(), block_table.const_data_ptr<int32_t>(),
             num_seqs, block_table.size(1), pool.size(0)},
            {q.size(1), kv_heads, q.size(2), block_tokens},
            at::get_num_threads());
  by_type(q, [&]<typename T>(T) {
    const tenora::AttentionArguments<T> arguments = {
        head_rows<const T>(q),
        {data<T>(pool), num_layers, block_tokens, kv_heads, q.size(2)},
        layer,
        static_cast<float>(scale),
        head_rows<T>(out),
    };
    const tenora::AttentionPlan& made = plan;  // the members' own `plan` would be another one
    tenora::run_team(made.useful_threads(), [&](tenora::Member& member) {
      tenora::attend<T>(member, made, arguments);
      if (!made.is_split()) return;
      member.barrier();
      tenora::combine<T>(member, made, arguments);
    });
  });
}

int64_t attention_most_bytes(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t threads,
                             int64_t rows, int64_t context) {
  return tenora::AttentionPlan::most_bytes({heads, kv_heads, head_dim, 1}, threads, rows, context);
}

// Of a plan for these sequences, whose blocks are all the same page.
int64_t attention_plan_bytes(const Tensor& query_start, const Tensor& context_len, int64_t heads,
                             int64_t kv_heads, int64_t head_dim, int64_t block_tokens,
                             int64_t threads) {
  check_index(query_start, at::kInt, 1);
  check_index(context_len, at::kInt, 1);
  const int32_t* contexts = context_len.const_data_ptr<int32_t>();
  const int64_t num_seqs = context_len.size(0);
  int64_t blocks = 1;
  for (int64_t i = 0; i < num_seqs; ++i)
    blocks = std::max(blocks, (contexts[i] + block_tokens - 1) / block_tokens);
  const std::vector<int32_t> table(num_seqs * blocks, 0);
  tenora::AttentionPlan plan;
  plan.make({query_start.const_data_ptr<int32_t>(), contexts, table.data(), num_seqs, blocks, 1},
            {heads, kv_heads, head_dim, block_tokens}, threads);
  return plan.bytes();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tenora, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def(
      "add_rms_norm(Tensor x, Tensor weight, float eps, Tensor residual) -> (Tensor, Tensor)");
  library.def("silu_mul(Tensor gate_up) -> Tensor");
  library.def(
      "kv_write(Tensor(a!) q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor positions, "
      "Tensor(b!) pool, int num_layers, int block_tokens, int kv_heads, int layer, Tensor slots) "
      "-> ()");
  library.def(
      "paged_attention(Tensor q, Tensor pool, int num_layers, int block_tokens, int kv_heads, "
      "int layer, Tensor query_start, Tensor context_len, Tensor block_table, float scale, "
      "Tensor(a!) out) -> ()");
  library.def(
      "attention_most_bytes(int heads, int kv_heads, int head_dim, int threads, int rows, "
      "int context) -> int",
      &attention_most_bytes);
  library.def(
      "attention_plan_bytes(Tensor query_start, Tensor context_len, int heads, int kv_heads, "
      "int head_dim, int block_tokens, int threads) -> int",
      &attention_plan_bytes);
}

TORCH_LIBRARY_IMPL(tenora, CPU, library) {
  library.impl("rms_norm", &rms_norm);
  library.impl("add_rms_norm", &add_rms_norm);
  library.impl("silu_mul", &silu_mul);
  library.impl("kv_write", &kv_write);
  library.impl("paged_attention", &paged_attention);
}
