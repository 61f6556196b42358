// Converts OpenAI's completions and chat completions to RPCs of quintet.v1: for each prompt one
// GenerateStream if the client wants a stream, otherwise one Generate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api_route.h"
#include "server/json_fields.h"

namespace quintet {

class CompletionTranslation final : public Translation {
 public:
  // `chat`: chat.completion objects instead of text_completion.
  static absl::StatusOr<std::unique_ptr<Translation>> Create(const ApiRequest& request, bool chat);

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override;
  std::string OnChunk(size_t rpc, const v1::GenerateChunk& chunk) override;
  std::string OnComplete(size_t rpc, const v1::GenerateResponse& response) override;
  std::string OnEnd() override;
  std::string OnError(const std::string& error) override;

 private:
  using Json = JsonValue;
  CompletionTranslation(const ApiRequest& request, bool chat);

  void ReadOptions(JsonFields* fields, v1::GenerateRequest* proto);
  void ReadCounts(JsonFields* fields, v1::DecodingOptions* to);
  void ReadSampling(JsonFields* fields, v1::DecodingOptions* to);
  void ReadLogProbs(JsonFields* fields, v1::DecodingOptions* to);
  void ReadStream(JsonFields* fields);
  void AddPrompts(const std::vector<v1::Input>& prompts, bool list, v1::GenerateRequest proto);

  // Returns the JSON members that all objects of a response have: id, object, created, model.
  Json Head(const char* object) const;
  // Returns the JSON of a choice, without its text and its first `sent_tokens` token ids.
  Json Choice(size_t index, const v1::Sequence& sequence, size_t sent_tokens) const;
  // The last event of a choice, with the text and the token ids that have not been sent.
  std::string LastEvent(size_t index, const v1::Sequence& sequence);
  Json LogProbs(const v1::Sequence& sequence) const;
  void Count(const v1::GenerateResponse& response);
  Json UsageJson() const;

  const bool chat_;
  const std::string id_;
  const int64_t created_;
  std::string model_;
  std::shared_ptr<const ModelHost> host_;  // null: unknown model, which the RPC rejects
  FieldRenames aliases_;
  size_t sequences_ = 1;  // number of choices per prompt
  bool token_ids_ = false, skip_special_tokens_ = true, include_usage_ = false;
  uint64_t prompt_tokens_ = 0, completion_tokens_ = 0;
  std::string chunk_head_;  // of the event of a chunk: all before the index of its choice
  struct Streamed {
    size_t text_bytes = 0, tokens = 0;
    bool role = false;  // the role of a chat's message has been sent
  };
  std::vector<Streamed> streamed_;  // what has been sent, by choice
};

}  // namespace quintet
