// All products of one input are one step: queries, keys and values, say. Their weights are shared
// among the workers as one list. A partial result stays alone: what its sum begins with may come
// later.
#include <vector>

#include "engine/graph/fusion/rules.h"

namespace lockstep {

void fuse_qkv(Groups& groups, size_t node) {
  const auto is_free = [&](size_t reader) {
    return groups.node(reader).operation == Operation::kMatmul && groups.is_alone(reader) &&
           groups.split().values[reader].kind != SplitKind::kPartial;
  };
  if (!is_free(node)) return;
  std::vector<size_t> products;
  for (const size_t reader : groups.readers(groups.node(node).inputs[0]).nodes) {
    if (is_free(reader)) products.push_back(reader);
  }
  if (products.size() > 1) groups.join(products, products.front());
}

}  // namespace lockstep
