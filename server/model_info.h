// The responses of GetModelInfo and ListModels.
#pragma once

#include "quintet/v1/inference.pb.h"
#include "server/call.h"
#include "server/model_host.h"

namespace quintet {

// Returns the largest number of tokens of one input: --max-input-tokens or, if it is smaller, the
// model's number of positions. The model must be ready.
int64_t MaxInputTokens(const ModelHost& host);

// The model must be ready.
void WriteModelInfo(const ModelHost& host, const CallContext& context,
                    v1::GetModelInfoResponse* response);

// The model may be in any state.
void WriteServedModel(const ModelHost& host, v1::ServedModel* model);

}  // namespace quintet
