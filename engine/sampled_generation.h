// Greedy decoding and sampling: one or several sequences that go their own ways.
#pragma once

#include <memory>
#include <vector>

#include "engine/generation.h"
#include "engine/text_stream.h"

namespace quintet {

class SampledGeneration : public Generation {
 public:
  SampledGeneration(const Request& request, const Tokenizer* tokenizer, int64_t vocab,
                    int64_t page_size);

  float RowBias(int64_t) const override { return 0.0f; }
  void Deliver(ResponseSink* sink) override;
  std::vector<GeneratedSequence> TakeSequences() override;

 private:
  struct Sample {
    std::vector<TokenLogProb> logprobs;
    std::unique_ptr<TextStream> text;  // where it is needed step by step: streaming, stop strings
    int64_t in_text = 0;               // tokens
    int64_t length = 0;                // of its history, once ended
    FinishReason reason = FinishReason::kLength;
  };

  void Select(const RowResults& results) override;
  // Takes the chosen token; true when the sequence ends with it.
  bool Accept(int64_t seq, int32_t token);
  // Where no stop string has to be looked for at each token, text is made when it is wanted.
  void CatchUpText(int64_t seq);

  std::vector<Sample> samples_;  // [sequences]
};

}  // namespace quintet
