// Greedy decoding and random sampling: one or several independent sequences of one request.
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
    std::unique_ptr<TextStream> text;  // for streaming and stop strings; otherwise null
    int64_t in_text = 0;               // tokens pushed to `text`
    int64_t length = 0;                // tokens of the history, prompt included, once ended
    FinishReason reason = FinishReason::kLength;
  };

  void Select(const RowResults& results) override;
  // Appends the chosen token. Returns true if the sequence ends with it.
  bool Accept(int64_t seq, int32_t token);
  // Pushes those tokens of the sequence to Sample::text that are not yet in it. With stop strings
  // nothing is left to push, because Accept pushes each token at once; otherwise tokens are
  // detokenized only here, when text is delivered.
  void CatchUpText(int64_t seq);

  std::vector<Sample> samples_;  // [sequences]
};

}  // namespace quintet
