// The responses of GetModelInfo and ListModels.
#pragma once

#include "quintet/v1/inference.pb.h"
#include "server/call.h"
#include "server/model_host.h"

namespace quintet {

// Returns the largest number of tokens of one input: --max-input-tokens or, if it is smaller, the
// model's number of positions.
int64_t MaxInputTokens(const ModelHost& host);

// Fills the response of GetModelInfo.
void WriteModelInfo(const ModelHost& host, const CallContext& context,
                    v1::GetModelInfoResponse* response);

// Fills the entry of one model in the response of ListModels. The model may be in any state, also
// before it is loaded.
void WriteServedModel(const ServedModel& served, v1::ServedModel* model);

v1::ModelState StateToProto(ModelState state);

}  // namespace quintet
