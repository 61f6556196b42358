// The report of `quintet inspect` about a LoRA adapter.
#pragma once

#include <string>

#include "models/adapters/adapter_summary.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Prints a line of a report of `quintet inspect`: the name of a field and its value.
void PrintField(const char* name, const std::string& value);
void PrintAdapter(const AdapterSummary& summary);
nlohmann::json AdapterJson(const AdapterSummary& summary);

}  // namespace quintet
