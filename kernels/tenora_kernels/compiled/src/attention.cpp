#include "attention.h"

#include "attention_decode.h"
#include "attention_prefill.h"

namespace tenora {

namespace {

// total = total and part, which comes behind it in the context.
__attribute__((noinline)) void merge(const State& total, const State& part, int64_t rows,
                                     int64_t pitch) {
  for (int64_t row = 0; row < rows; ++row) {
    const float high = std::max(total.highest[row], part.highest[row]);
    const Lanes factors =
        exp2_below_one(Lanes{total.highest[row] - high, part.highest[row] - high});
    const float earlier = factors[0], later = factors[1];
    total.highest[row] = high;
    total.sum[row] = total.sum[row] * earlier + part.sum[row] * later;
    float* mixed = total.mixed + row * pitch;
    const float* more = part.mixed + row * pitch;
    for (int64_t c = 0; c < pitch; c += LANES)
      store(mixed + c, load(mixed + c) * earlier + load(more + c) * later);
  }
}

// The rows of KV heads from `head` on.
template <typename T>
void write_out(const AttentionPlan& plan, const HeadRows<T>& out, const AttentionItem& item,
               int64_t head, const State& state, int64_t rows) {
  const int64_t rows_per_head = item.queries * plan.group();
  const int64_t head_dim = plan.shape().head_dim;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t query = row % rows_per_head / plan.group();
    const int64_t q_head = (head + row / rows_per_head) * plan.group() + row % plan.group();
    T* to = out.at(item.first_row + query, q_head);
    const float* mixed = state.mixed + row * plan.pitch();
    const float factor = 1.0f / state.sum[row];
    for (int64_t c = 0; c < head_dim; c += LANES)
      store_up_to(to + c, load(mixed + c) * factor, head_dim - c);
  }
}

// Where the state of a part lies that several tasks share, rows of KV heads from `head` on.
State shared_state(const AttentionPlan& plan, const AttentionItem& item, int64_t part,
                   int64_t head) {
  const int64_t rows = plan.shape().heads * item.queries;
  float* memory =
      plan.partial() + item.partial + part * State::floats(rows, plan.pitch());
  return State::at(memory, rows).from_row(head * item.queries * plan.group(), plan.pitch());
}

// Parts first..last of some KV heads by `work(part, state)`, merged and written out unless shared.
template <typename T, typename Work>
void run_parts(const AttentionPlan& plan, const AttentionArguments<T>& p,
               const AttentionTask& task, int64_t head, int64_t rows, Floats scratch, Work&& work) {
  const AttentionItem& item = plan.items()[task.item];
  if (item.partial >= 0) {
    for (int64_t part = task.first_part; part < task.last_part; ++part)
      work(part, shared_state(plan, item, part, head));
    return;
  }
  const int64_t floats = State::floats(rows, plan.pitch());
  const State total = State::at(scratch.take<float>(floats), rows);
  const State next = State::at(scratch.take<float>(floats), rows);
  for (int64_t part = 0; part < item.parts; ++part) {
    work(part, part ? next : total);
    if (part) merge(total, next, rows, plan.pitch());
  }
  write_out(plan, p.out, item, head, total, rows);
}

}  // namespace

template <typename T>
void attend(Member& member, const AttentionPlan& plan, const AttentionArguments<T>& p) {
  member.deal(plan.tasks().size(), [&](int64_t index) {
    const AttentionTask& task = plan.tasks()[index];
    const AttentionItem& item = plan.items()[task.item];
    const int64_t rows_per_head = item.queries * plan.group();
    if (item.queries == 1) {
      Floats scratch(plan.scratch(member.index()));
      DecodePart<T> decode(plan, p, item, task.first_head, task.last_head, scratch);
      run_parts(plan, p, task, task.first_head, (task.last_head - task.first_head) * rows_per_head,
                scratch, [&](int64_t part, const State& state) { decode.attend(part, state); });
      return;
    }
    for (int64_t head = task.first_head; head < task.last_head; ++head) {
      Floats scratch(plan.scratch(member.index()));
      PrefillPart<T> prefill(plan, p, item, head, scratch);
      run_parts(plan, p, task, head, rows_per_head, scratch,
                [&](int64_t part, const State& state) { prefill.attend(part, state); });
    }
  });
}

template <typename T>
void combine(Member& member, const AttentionPlan& plan, const AttentionArguments<T>& p) {
  member.deal(plan.combines().size(), [&](int64_t index) {
    const AttentionTask& task = plan.combines()[index];
    const AttentionItem& item = plan.items()[task.item];
    const int64_t rows = item.queries * plan.group();
    const State total = shared_state(plan, item, 0, task.first_head);
    for (int64_t part = 1; part < item.parts; ++part)
      merge(total, shared_state(plan, item, part, task.first_head), rows, plan.pitch());
    write_out(plan, p.out, item, task.first_head, total, rows);
  });
}

template void attend<float>(Member&, const AttentionPlan&, const AttentionArguments<float>&);
template void attend<bf16>(Member&, const AttentionPlan&, const AttentionArguments<bf16>&);
template void combine<float>(Member&, const AttentionPlan&, const AttentionArguments<float>&);
template void combine<bf16>(Member&, const AttentionPlan&, const AttentionArguments<bf16>&);

}  // namespace tenora
