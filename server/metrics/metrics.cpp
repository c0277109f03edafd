#include "server/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/metrics/families.h"

namespace lockstep {

Metrics::Metrics(const Engine& engine, std::string model_name, std::string aliases)
    : engine_(engine), model_name_(std::move(model_name)), aliases_(std::move(aliases)) {}

std::string Metrics::text() const {
  auto families = engine_families(engine_.statistics(), engine_.model(), model_name_);
  std::ranges::move(http_.families(), std::back_inserter(families));
  std::ranges::move(process_families(), std::back_inserter(families));
  for (const Source& source : sources_) {
    std::ranges::move(source(), std::back_inserter(families));
  }
  if (aliases_ == "vllm") std::ranges::move(vllm_aliases(families), std::back_inserter(families));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace lockstep
