// ByT5: the id of a byte is its value + 3. Its only tokenizer file is tokenizer_config.json.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/tokenizers/settings.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeByT5(const TokenizerSettings& settings);

}  // namespace quintet
