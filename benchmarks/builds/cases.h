// The batches that builds are compared on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "driver.h"

struct NamedCase {
  std::string name;
  int64_t sequences, rows, context;
  std::vector<int32_t> slots, ranks;
  int64_t layers = 30;
  bool sgmv_alone = false;
  bool last_only = false;

  StepCase step() const {
    return {sequences,    rows, context, slots.data(), ranks.data(),
            static_cast<int64_t>(ranks.size()), layers, sgmv_alone, last_only};
  }
};

inline constexpr int64_t DECODE_CONTEXT = 128;

// Decode rows that share one adapter.
inline NamedCase shared_by(std::string name, int64_t rows, int32_t rank,
                           int64_t context = DECODE_CONTEXT) {
  return {name, rows, 1, context, std::vector<int32_t>(rows, 0), {rank}};
}

// Decode rows with an adapter each, their ranks in turn.
inline NamedCase distinct(std::string name, int64_t rows, const std::vector<int32_t>& in_turn) {
  NamedCase made{name, rows, 1, DECODE_CONTEXT, {}, {}};
  for (int64_t row = 0; row < rows; ++row) {
    made.slots.push_back(static_cast<int32_t>(row));
    made.ranks.push_back(in_turn[row % in_turn.size()]);
  }
  return made;
}

// One prompt, from its first token.
inline NamedCase prompt(std::string name, int64_t rows, int32_t rank) {
  return {name, 1, rows, rows, {0}, {rank}};
}

inline std::vector<NamedCase> all_cases() {
  const std::vector<int32_t> mixed_ranks{8, 16, 32, 64};
  NamedCase half{"half", 16, 1, DECODE_CONTEXT, {}, {16, 32, 32, 32, 32}};
  half.slots = {0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, -1, -1, -1, -1};
  NamedCase sgmv = distinct("sgmv32", 64, {32});
  sgmv.layers = 8;
  sgmv.sgmv_alone = true;
  NamedCase first_token = prompt("p1000", 1000, 8);
  first_token.last_only = true;
  return {shared_by("one8", 1, 8),
          shared_by("one64", 1, 64),
          shared_by("s8", 16, 8),
          shared_by("s64", 16, 64),
          distinct("d8", 16, {8}),
          distinct("mix", 16, mixed_ranks),
          distinct("d8x64", 64, {8}),
          distinct("mixx64", 64, mixed_ranks),
          half,
          shared_by("long", 8, 8, 1000),
          prompt("p8", 256, 8),
          prompt("p64", 256, 64),
          first_token,
          sgmv};
}
