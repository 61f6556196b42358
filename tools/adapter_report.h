// The report of `quintet inspect` about a LoRA adapter.
#pragma once

#include "models/adapters/adapter_summary.h"
#include "nlohmann/json.hpp"

namespace quintet {

void PrintAdapter(const AdapterSummary& summary);
nlohmann::json AdapterJson(const AdapterSummary& summary);

}  // namespace quintet
