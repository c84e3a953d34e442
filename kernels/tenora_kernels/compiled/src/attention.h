// Causal attention of ragged queries over keys and values in pages: decode rows and prefill chunks
// in one call, grouped queries, long contexts split (flash-decoding, Dao et al. 2023).
//
// A context is cut into parts of a fixed number of tokens. Each part has a softmax of its own, and
// the parts are merged in their order, whether one task went through all of them or several did
// and `combine` merges: a row's bits depend neither on the threads nor on the rest of the batch.
#pragma once

#include <memory>
#include <vector>

#include "pages.h"
#include "team.h"
#include "vectors.h"

namespace tenora {

struct AttentionShape {
  int64_t heads, kv_heads, head_dim, block_tokens;
};

// Sequence i owns query rows query_start[i]..query_start[i + 1], the last of its context_len[i]
// tokens. The memory is read until the step's last `attend`.
struct AttentionBatch {
  const int32_t* query_start;  // [num_seqs + 1]
  const int32_t* context_len;  // [num_seqs]
  const int32_t* block_table;  // [num_seqs, max_blocks], page numbers
  int64_t num_seqs, max_blocks;
  int64_t num_pages;  // of the arena
};

// Some query rows of one sequence, and the keys they see.
struct AttentionItem {
  const int32_t* blocks;
  int64_t first_row, queries;
  int64_t keys;   // seen by the last query; the one before it sees one less
  int64_t parts;  // of the context
  int64_t partial;  // where the states of the parts lie when tasks share them, else -1
};

struct AttentionTask {
  int32_t item;
  int32_t first_part, last_part;
  int32_t first_head, last_head;  // KV heads
  float cost;
};

// The work of one step, shared out. Made once, used by all layers; keeps its memory when remade.
class AttentionPlan {
 public:
  // `threads`: the most members a team that uses the plan may have.
  // Throws std::invalid_argument when the batch does not fit together or into the arena.
  void make(const AttentionBatch& batch, const AttentionShape& shape, int threads);

  // Bytes that a plan takes at most for steps of so many rows, none with a longer context; what
  // `make` allocates is never more, and is kept.
  static int64_t most_bytes(const AttentionShape& shape, int threads, int64_t rows,
                            int64_t context);
  int64_t bytes() const { return memory_.capacity() * sizeof(float); }

  // Whether `combine` has anything to do after `attend` and a barrier.
  bool is_split() const { return !combines_.empty(); }
  // Members beyond these find no task.
  int useful_threads() const;

  const AttentionShape& shape() const { return shape_; }
  int64_t group() const { return shape_.heads / shape_.kv_heads; }  // query heads of a KV head
  int64_t pitch() const { return pitch_; }  // floats of a row of mixed values
  const std::vector<AttentionItem>& items() const { return items_; }
  const std::vector<AttentionTask>& tasks() const { return tasks_; }
  const std::vector<AttentionTask>& combines() const { return combines_; }
  float* scratch(int member) const { return scratch_ + member * scratch_floats_; }
  float* partial() const { return partial_; }

 private:
  AttentionShape shape_ = {};
  int threads_ = 0;
  int64_t pitch_ = 0;
  std::vector<AttentionItem> items_;
  std::vector<AttentionTask> tasks_;
  std::vector<AttentionTask> combines_;
  std::vector<float> memory_;
  float* scratch_ = nullptr;
  float* partial_ = nullptr;
  int64_t scratch_floats_ = 0;
  int64_t partial_left_ = 0;  // floats for states that may still be shared, while it is made

  void add_items(const AttentionBatch& batch);
  void cut(int32_t item, float target);
  void reserve(int64_t partial_floats);
};

template <typename T>
struct AttentionArguments {
  HeadRows<const T> q;  // rotated
  KVPages<const T> pages;
  int64_t layer;
  float scale;
  HeadRows<T> out;
};

template <typename T>
void attend(Member& member, const AttentionPlan& plan, const AttentionArguments<T>& arguments);

// After a barrier, when `plan.is_split()`.
template <typename T>
void combine(Member& member, const AttentionPlan& plan, const AttentionArguments<T>& arguments);

}  // namespace tenora
