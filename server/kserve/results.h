// Results of the engine as tensors of a ModelInferResponse. Rows of different lengths are padded:
// texts with empty ones, token ids with the padding id, numbers with 0. Stateless.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "quintet/v1/inference.pb.h"
#include "server/kserve/tensors.h"
#include "server/model_host.h"

namespace quintet {

// How much of one sequence the chunks of a stream have already contained.
struct SentPart {
  size_t text_bytes = 0, ids = 0;
};

// Which outputs to write, in order, and how.
struct OutputOptions {
  std::vector<std::string> names;
  bool flat = false;   // generation: merge the dimensions of batch and sequences
  bool typed = false;  // write typed contents
  // For each generated sequence, by its index: the part that chunks have already sent. The outputs
  // omit this part.
  std::map<uint32_t, SentPart> sent = {};
};

// `responses`: one for each input.
void WriteGenerated(const std::vector<v1::GenerateResponse>& responses,
                    const std::vector<Result>& results, int32_t pad_id,
                    const OutputOptions& options, kserve::ModelInferResponse* response);
// Writes a chunk: the outputs text_output and output_ids of one sequence.
void WriteGeneratedChunk(const v1::GenerateChunk& chunk, const OutputOptions& options,
                         kserve::ModelInferResponse* response);
void WriteEncoded(const std::vector<Result>& results, v1::VectorType type,
                  const OutputOptions& options, kserve::ModelInferResponse* response);
// `responses`: one for each input, all with the same number of targets.
void WriteScored(const std::vector<v1::ScoreResponse>& responses,
                 const std::vector<Result>& results, const OutputOptions& options,
                 kserve::ModelInferResponse* response);
void WriteClassified(const v1::ClassifyResponse& classified, const std::vector<Result>& results,
                     const ModelConfig& config, const OutputOptions& options,
                     kserve::ModelInferResponse* response);
// Writes usage and timing of the call as parameters of the response.
void WriteInfoParameters(const v1::CallInfo& info, kserve::ModelInferResponse* response);

}  // namespace quintet
