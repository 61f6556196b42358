// Converts TEI's /embed to an RPC. TGI's route POST / uses it, too, for models that embed texts.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api_route.h"

namespace quintet {

absl::StatusOr<std::unique_ptr<Translation>> TeiEmbed(const ApiRequest& request);
std::vector<ApiField> TeiEmbedFields();

}  // namespace quintet
